"""The list of gangs over HTTP, and the gang in explain."""

import pytest

from gpushare.answers.group_states import GroupStates
from gpushare.contract import LABEL_GANG, LABEL_GANG_MINIMUM
from gpushare.groups.index import Groups
from tests.builders import annotated, pod
from tests.unit.extender.scripted import PREFIX, Bench


def member(name: str, namespace: str = "default", minimum: int = 2):
    labels = {LABEL_GANG: "train", LABEL_GANG_MINIMUM: str(minimum)}
    return annotated(pod(name, 8, labels=labels), {}, namespace=namespace)


def form(bench: Bench, *members) -> None:
    """Let the replica know these gangs."""
    groups, state = Groups(), bench.cluster.state
    for each in members:
        groups.update(each)
    state.gangs = GroupStates(groups, state.request_of, 1, lambda: 0.0)


@pytest.fixture
async def bench():
    made = Bench(16, 16)
    mine, theirs = member("a"), member("b", "other", minimum=1)
    made.add(mine, theirs, pod("single", 8))
    form(made, mine, theirs)
    return made


async def listed(client, path):
    response = await client.get(f"{PREFIX}/{path}")
    assert response.status == 200
    found = await response.json()
    return [(each["namespace"], each["name"], each["phase"]) for each in found["gangs"]]


async def test_gangs_are_listed_for_all_namespaces_and_for_one(client, bench):
    mine = ("default", "train", "WaitingForMembers")
    assert await listed(client, "gangs") == [mine, ("other", "train", "WaitingForRoom")]
    assert await listed(client, "gangs/default") == [mine]
    assert await listed(client, "gangs/nowhere") == []


async def test_without_gangs_the_list_is_empty(client, bench):
    form(bench)
    response = await client.get(f"{PREFIX}/gangs")
    assert await response.json() == {"gangs": [], "leftOut": 0}


async def test_explain_shows_the_gang_of_a_member_and_says_its_sentence_first(client, bench):
    found = await (await client.get(f"{PREFIX}/explain/default/a")).json()
    assert (found["gang"]["members"], found["gang"]["minimum"]) == (1, 2)
    assert found["says"].startswith("it is a member of gang train. Waiting for 1 of 2 members.")
    single = await (await client.get(f"{PREFIX}/explain/default/single")).json()
    assert "gang" not in single
