"""Which gated pods the leader releases, in what order, and with what."""

import asyncio

import msgspec
import pytest

from extender.gangs.rights import MISSING_SECONDS, PatchRight
from extender.gates.releaser import Releaser
from extender.queue.admission import SHOWN_SECONDS, Admission
from gpushare.answers.gang_text import GATES_STAY
from gpushare.answers.pending.text import sentence
from gpushare.answers.pending.why import why_pending
from gpushare.contract import ANNOTATION_POKE, ANNOTATION_SLOT, GATE_ADMISSION
from gpushare.errors import ApiError
from gpushare.objects.scheduling import SchedulingGate
from gpushare.process.time_slices import run_all
from tests.builders import pod
from tests.gangs import member
from tests.unit.extender.gangs.driver import GangCluster
from tests.unit.extender.gangs.test_duties import ListedKube, owned
from tests.unit.extender.scripted import changed

GATED = (GATE_ADMISSION,)
ZONES = {"a": {"zone": "x"}, "b": {"zone": "y"}}


class Patched:
    """An API server that removes gates."""

    def __init__(self, cluster: GangCluster) -> None:
        self.cluster, self.patches, self.allowed = cluster, {}, True
        self.nominated, self.refused = {}, 0

    async def request(self, method, path, *, body) -> bytes:
        assert (method, body["kind"]) == ("POST", "SelfSubjectAccessReview")
        return msgspec.json.encode({"status": {"allowed": self.allowed}})

    async def nominate_node(self, pod, patch) -> None:
        self.nominated[pod.metadata.name] = patch["status"]["nominatedNodeName"]

    async def release_pod(self, pod, patch) -> None:
        if not self.allowed:
            self.refused += 1
            raise ApiError("forbidden", code=403)
        self.patches[pod.metadata.name] = patch
        found = self.cluster.kube.pods[pod.metadata.name]
        if "spec" in patch:
            found = changed(found, spec={"scheduling_gates": None})
        self.cluster.add(found)


def stage(sizes=None, labels=None, **more):
    cluster = GangCluster(sizes or {"a": (16, 16), "b": (16, 16)}, labels, **more)
    api = Patched(cluster)
    right = PatchRight(api, cluster.time)
    return cluster, api, Admission(cluster.gangs, cluster.planning, Releaser(api), right)


async def check(admission: Admission) -> None:
    async with asyncio.TaskGroup() as tasks:
        await admission.check(tasks)
        await admission.check_claims()


def gated(gang: str, count: int, minimum: int, units: int = 12, **more):
    return [
        member(f"{gang}-{n}", gang, minimum, units=units, gates=GATED, **more) for n in range(count)
    ]


async def test_a_gang_stays_gated_until_it_has_room_as_a_whole():
    cluster, api, admission = stage()
    cluster.add(*gated("wide", 5, 5))
    await check(admission)
    assert api.patches == {}
    assert cluster.held == 0
    cluster.delete("wide-4")
    cluster.add(*gated("wide", 5, 4)[4:])
    cluster.add(*gated("fits", 3, 3, units=4))
    await check(admission)
    assert sorted(api.patches) == ["fits-0", "fits-1", "fits-2"]


async def test_one_patch_removes_the_gate_and_names_slot_and_zone():
    cluster, api, admission = stage(labels=ZONES)
    cluster.add(*gated("g", 2, 2, zone_key="zone"))
    await check(admission)
    nodes = {name: cluster.cluster.ledger.slot_of(f"default-{name}").node for name in api.patches}
    assert len(nodes) == 2
    for name, patch in api.patches.items():
        zone = ZONES[nodes[name]]["zone"]
        assert patch["metadata"]["uid"] == f"default-{name}"
        assert nodes[name] in patch["metadata"]["annotations"][ANNOTATION_SLOT]
        assert patch["spec"]["nodeSelector"] == {"zone": zone}
    assert api.nominated == nodes
    bound = await cluster.schedule(*nodes)
    assert bound == nodes


@pytest.mark.parametrize(("nodes", "expected"), [(2, {"single": "a"}), (3, {})])
async def test_a_single_pod_nominates_its_node_only_in_a_large_cluster(
    nodes, expected, monkeypatch
):
    monkeypatch.setattr("extender.queue.admission.NOMINATED_NODES", nodes)
    cluster, api, admission = stage({"a": (16,), "full": ()})
    gates = (SchedulingGate(GATE_ADMISSION),)
    cluster.add(changed(pod("single", 12), spec={"scheduling_gates": gates}))
    await check(admission)
    assert list(api.patches) == ["single"]
    assert api.nominated == expected


async def test_the_more_important_gang_gets_the_room():
    cluster, api, admission = stage()
    cluster.add(*gated("low", 3, 3, priority=1), *gated("high", 3, 3, priority=5))
    await check(admission)
    assert sorted(api.patches) == ["high-0", "high-1", "high-2"]


async def test_a_gate_of_others_keeps_its_pod_and_the_gang_waiting():
    cluster, api, admission = stage()
    first, second = gated("g", 2, 2)
    gates = (SchedulingGate("example.com/other"), SchedulingGate(GATE_ADMISSION))
    cluster.add(first, changed(second, spec={"scheduling_gates": gates}))
    await check(admission)
    assert api.patches == {}


async def test_gated_pods_without_a_gang_are_released_as_far_as_there_is_room():
    cluster, api, admission = stage({"a": (16,)})
    for name in ("p", "q", "r"):
        cluster.add(
            changed(pod(name, 8), spec={"scheduling_gates": (SchedulingGate(GATE_ADMISSION),)})
        )
    await check(admission)
    assert len(api.patches) == 2
    assert len(await cluster.schedule(*api.patches)) == 2
    await check(admission)
    assert len(api.patches) == 2


async def test_ungated_members_that_kube_scheduler_has_forgotten_are_tried_again():
    cluster, api, admission = stage()
    cluster.add(*(member(f"g-{n}", "g", 2, units=4) for n in range(2)))
    await check(admission)
    assert cluster.held == 2
    cluster.time.now += 2
    await check(admission)
    assert sorted(api.patches) == ["g-0", "g-1"]
    assert all(ANNOTATION_POKE in each["metadata"]["annotations"] for each in api.patches.values())


async def test_without_the_right_to_patch_pods_nothing_is_kept_before_kube_scheduler_asks():
    cluster, api, admission = stage()
    api.allowed = False
    cluster.add(*(member(f"g-{n}", "g", 2, units=4) for n in range(2)))
    await check(admission)
    assert (cluster.held, api.patches) == (0, {})
    assert len(await cluster.schedule("g-0", "g-1")) == 2


async def test_pods_whose_gate_nothing_removes_say_so():
    cluster, api, admission = stage()
    gate = {"scheduling_gates": (SchedulingGate(GATE_ADMISSION),)}
    cluster.add(*gated("g", 3, 3), changed(pod("single", 4), spec=gate), pod("free", 4))

    def said(name: str) -> str:
        state, found = cluster.cluster.state, cluster.kube.pods[name]
        gang = state.gangs.view_of(found.uid)
        return sentence(run_all(why_pending(state, found, gang=gang)))

    assert said("single").endswith(", and gpushare removes its scheduling gate soon.")
    api.allowed = False
    await check(admission)
    assert said("single").endswith(f"its GPU memory fits now (a, GPU 0). {GATES_STAY}")
    assert said("g-0").endswith(f"Waiting for a plan for 3 x 12 MiB. {GATES_STAY}")
    assert GATES_STAY not in said("free")
    api.allowed = True
    cluster.time.now += MISSING_SECONDS
    await check(admission)
    assert GATES_STAY not in said("single") + said("g-0")


@pytest.mark.parametrize("gates", [GATED, ()], ids=["gated", "ungated"])
async def test_nothing_is_planned_or_tried_any_more_soon_after_the_right_to_patch_is_taken_away(
    gates,
):
    cluster, api, admission = stage()
    await check(admission)
    api.allowed = False
    cluster.add(*(member(f"g-{n}", "g", 2, units=12, gates=gates) for n in range(2)))
    for _ in range(7):
        cluster.time.now += 6
        cluster.cluster.expire_plans()
        await check(admission)
    assert (cluster.held, api.patches) == (0, {})
    assert api.refused == 2  # each pod once, before it was known


async def test_a_successor_in_a_gang_that_was_whole_is_released_alone():
    cluster, api, admission = stage()
    cluster.add(*gated("g", 3, 3, units=4))
    await check(admission)
    assert len(await cluster.schedule("g-0", "g-1", "g-2")) == 3
    cluster.delete("g-0", "g-1")  # one has succeeded, the other has failed
    cluster.add(*gated("g", 4, 3, units=4)[3:])
    await check(admission)
    assert "g-3" in api.patches
    assert len(await cluster.schedule("g-3")) == 1


async def test_a_successor_is_released_by_a_new_leader_though_the_others_have_succeeded():
    kube = ListedKube()
    cluster, api, admission = stage(kube=kube)
    kube.ended = [owned(member(f"g-{n}", "g", 3, phase="Succeeded")) for n in range(2)]
    cluster.add(owned(member("again", "g", 3, gates=GATED)))
    await check(admission)
    assert api.patches == {}
    cluster.time.now += 1
    await cluster.duties.check()
    await check(admission)
    assert list(api.patches) == ["again"]


async def test_a_gated_pod_that_needs_no_gpu_and_has_no_gang_is_released_at_once():
    cluster, api, admission = stage()
    cluster.add(
        changed(pod("p", None), spec={"scheduling_gates": (SchedulingGate(GATE_ADMISSION),)})
    )
    await check(admission)
    assert list(api.patches) == ["p"]


async def test_many_pods_that_fit_nowhere_do_not_hold_back_one_that_fits():
    cluster, api, admission = stage()
    gates = {"scheduling_gates": (SchedulingGate(GATE_ADMISSION),)}
    for number in range(600):
        cluster.add(changed(pod(f"large-{number}", 64), spec=gates))
    cluster.add(changed(pod("small", 1), spec=gates))
    await check(admission)
    assert list(api.patches) == ["small"]


async def test_a_pod_is_released_once_although_the_watch_shows_it_late():
    cluster, api, admission = stage()
    released = []

    async def release_pod(pod, _) -> None:
        released.append(pod.metadata.name)

    api.release_pod = release_pod  # the watch shows nothing
    cluster.add(*gated("g", 2, 2))
    for _ in range(3):
        await check(admission)
    assert sorted(released) == ["g-0", "g-1"]
    cluster.time.now += SHOWN_SECONDS
    await check(admission)
    assert len(released) == 4


async def test_pods_that_could_not_be_released_are_forgotten_once_they_are_gone():
    cluster, api, admission = stage()

    async def release_pod(pod, patch):
        raise ApiError("the pod contradicts it", code=422)

    api.release_pod = release_pod
    for number in range(3):
        name = f"p{number}"
        cluster.add(
            changed(pod(name, 8), spec={"scheduling_gates": (SchedulingGate(GATE_ADMISSION),)})
        )
        await check(admission)
        assert len(admission._retries) == 1
        cluster.delete(name)
    await check(admission)
    assert not len(admission._retries)
