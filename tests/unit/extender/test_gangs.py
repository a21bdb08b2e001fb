"""The list of gangs over HTTP, and the gang in explain."""

import pytest

from gpushare.contract import LABEL_GANG, LABEL_GANG_MINIMUM
from tests.builders import annotated, pod
from tests.unit.extender.scripted import PREFIX, Bench


def member(
    name: str, namespace: str = "default", minimum: int = 2, units: int | None = 8, node: str = ""
):
    labels = {LABEL_GANG: "train", LABEL_GANG_MINIMUM: str(minimum)}
    return annotated(pod(name, units, labels=labels, node=node), {}, namespace=namespace)


@pytest.fixture
async def bench():
    made = Bench(16, 16)
    made.add(member("a"), member("b", "other", minimum=1), pod("single", 8))
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
    for name in ("a", "b"):
        bench.cluster.pod_deleted(bench.kube.pods[name])
    response = await client.get(f"{PREFIX}/gangs")
    assert await response.json() == {"gangs": [], "leftOut": 0}


async def explained(client, name):
    response = await client.get(f"{PREFIX}/explain/default/{name}")
    assert response.status == 200
    return await response.json()


async def test_explain_shows_the_gang_of_a_member_and_says_its_sentence_first(client, bench):
    found = await explained(client, "a")
    assert (found["gang"]["members"], found["gang"]["minimum"]) == (1, 2)
    assert found["says"].startswith(
        "it is a member of gang train. Waiting for 1 of 2 members; 1 exists."
    )
    assert "gang" not in await explained(client, "single")


async def test_explain_knows_members_without_gpu_memory(client, bench):
    bench.add(member("server", units=None))
    found = await explained(client, "server")
    assert (found["state"], found["asks"], found["nodes"]) == ("waiting", None, [])
    assert found["says"] == (
        "it is a member of gang train. Waiting for a plan for 1 x 8 MiB and 1 pod without GPU "
        "memory."
    )
    bench.add(pod("web", None))
    assert (await client.get(f"{PREFIX}/explain/default/web")).status == 404
