"""A released pod nominates the node of its slot, and no other node is kept from others."""

import pytest

from extender.gangs.nominations import STALE_SECONDS, StaleNominations
from extender.gates.patch import nomination_patch
from extender.gates.releaser import Releaser
from gpushare.contract import ANNOTATION_SLOT
from gpushare.errors import ApiError
from tests.gangs import member
from tests.unit.extender.gangs.driver import GangCluster
from tests.unit.extender.scripted import changed


class Api:
    """An API server whose answers reach the watch at once."""

    def __init__(self, cluster: GangCluster) -> None:
        self.cluster, self.writes, self.error = cluster, [], None

    async def nominate_node(self, pod, patch) -> None:
        self.writes.append(pod.metadata.name)
        if self.error is not None:
            raise self.error
        assert patch == {"metadata": {"uid": pod.uid}, "status": {"nominatedNodeName": None}}
        self.cluster.add(changed(pod, status={"nominated_node_name": None}))


def nominated(name: str, node: str, by_us: bool = True):
    made = member(name, "g", 2, units=4)
    notes = nomination_patch(made, node, ["GPU-0"])["metadata"]["annotations"] if by_us else {}
    return changed(made, {"annotations": notes}, status={"nominated_node_name": node})


@pytest.fixture
def cluster() -> GangCluster:
    return GangCluster({"a": (16, 16), "b": (16, 16)})


async def passes(cluster: GangCluster, stale: StaleNominations) -> None:
    await stale.check()
    cluster.time.now += STALE_SECONDS
    await stale.check()


def parts(cluster: GangCluster):
    api = Api(cluster)
    return api, StaleNominations(cluster.cluster.state, Releaser(api))


async def test_a_nominated_node_without_a_slot_is_removed_after_a_while(cluster):
    api, stale = parts(cluster)
    cluster.add(nominated("g-0", "a"))
    await stale.check()
    assert api.writes == []
    await passes(cluster, stale)
    assert api.writes == ["g-0"]
    await passes(cluster, stale)
    assert api.writes == ["g-0"]


async def test_the_node_of_a_slot_and_what_kube_scheduler_nominates_stay(cluster):
    api, stale = parts(cluster)
    cluster.add(nominated("g-0", "a"), member("g-1", "g", 2, units=4))
    await cluster.planning.plan(cluster.gangs.group_of(cluster.kube.pods["g-0"]))
    slot = cluster.cluster.ledger.slot_of("default-g-0")
    cluster.add(nominated("g-0", slot.node), nominated("g-1", "b", by_us=False))
    await passes(cluster, stale)
    assert api.writes == []


async def test_what_kube_scheduler_nominates_after_that_stays(cluster):
    api, stale = parts(cluster)
    cluster.add(nominated("g-0", "a"))
    await passes(cluster, stale)
    cluster.add(nominated("g-0", "a"))
    await passes(cluster, stale)
    assert api.writes == ["g-0"]


async def test_a_write_that_fails_is_made_again(cluster):
    api, stale = parts(cluster)
    api.error = ApiError("500", code=500)
    cluster.add(nominated("g-0", "a"))
    await passes(cluster, stale)
    api.error = None
    cluster.time.now += 1
    await stale.check()
    assert api.writes == ["g-0", "g-0"]


async def test_kube_scheduler_goes_on_to_all_nodes_if_the_slot_has_moved(cluster):
    pods = [member(f"g-{n}", "g", 2, units=4) for n in range(2)]
    cluster.add(*pods)
    await cluster.planning.plan(cluster.gangs.group_of(cluster.kube.pods["g-0"]))
    slot = cluster.cluster.ledger.slot_of("default-g-0")
    other = "b" if slot.node == "a" else "a"
    moved = changed(
        pods[0],
        {"annotations": {ANNOTATION_SLOT: f'{{"node": "{other}"}}'}},
        status={"nominated_node_name": other},
    )
    cluster.add(moved)
    refused = await cluster.answers.filter(moved, [other])
    assert (refused.fitting, list(refused.final)) == ([], [other])
    assert cluster.cluster.ledger.slot_of("default-g-0") == slot
    found = await cluster.answers.filter(moved, ["a", "b"])
    assert found.fitting == [slot.node]
