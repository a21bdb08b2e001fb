"""The queue and the quotas over HTTP, and the place in explain."""

import pytest

from extender.gangs.planning import GangPlanning
from extender.gangs.rights import PatchRight
from extender.gates.releaser import Releaser
from extender.queue.admission import Admission
from gpushare.quota.namespaces import Namespace
from gpushare.quota.quota import parse
from tests.builders import pod
from tests.gangs import member
from tests.unit.extender.scripted import PREFIX, Bench


@pytest.fixture
async def bench():
    made = Bench(16, 16)
    scheduling = made.cluster.scheduling
    right = PatchRight(made.kube, made.time)
    made.admission = Admission(
        scheduling.gangs, GangPlanning(scheduling), Releaser(made.kube), right
    )
    scheduling.gangs.admits = True  # as on the leader
    made.cluster.state.namespaces.put(Namespace("other", is_queued=True, quota=parse("8")))
    made.add(member("a", minimum=2), member("b", namespace="other", minimum=1, units=12))
    return made


async def got(client, path):
    response = await client.get(f"{PREFIX}/{path}")
    assert response.status == 200
    return await response.json()


async def test_the_queue_is_returned_for_all_namespaces_and_for_one(client, bench):
    found = await got(client, "queue")
    assert [(each["namespace"], each.get("place", 0)) for each in found["entries"]] == [
        ("other", 1),
        ("default", 0),
    ]
    assert (found["length"], found["leftOut"], found["order"], found["backfill"]) == (
        *(1, 0),
        *("fair", True),
    )
    found = await got(client, "queue/default")
    assert [(each["name"], each["reason"]) for each in found["entries"]] == [
        ("g", "WaitingForMembers")
    ]
    assert (await got(client, "queue/nowhere"))["entries"] == []


async def test_quotas_are_returned_for_all_namespaces_and_for_one(client, bench):
    [mine] = (await got(client, "quota/other"))["quotas"]
    assert (mine["limit"], mine["used"], mine["waitingPods"], mine["waitingUnits"]) == (8, 0, 1, 12)
    found = await got(client, "quota")
    assert [each["namespace"] for each in found["quotas"]] == ["other"]
    assert (found["capacity"], found["unitMiB"], found["problem"]) == (32, 1, "")


async def test_explain_has_the_place_of_a_pod_or_of_its_gang(client, bench):
    found = await got(client, "explain/other/b")
    assert (found["queue"]["place"], found["queue"]["length"], found["queue"]["kind"]) == (
        *(1, 1),
        "Gang",
    )
    found = await got(client, "explain/default/a")
    assert (found["queue"]["reason"], "place" in found["queue"]) == ("WaitingForMembers", False)
    bench.add(pod("single", 8))
    assert "queue" not in await got(client, "explain/default/single")
