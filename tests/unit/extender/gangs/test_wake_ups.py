"""Rejected pods without a gate are tried again exactly when there is room for them."""

from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from extender.gangs.pokes import Pokes
from extender.gangs.rights import PatchRight
from extender.gangs.wake_ups import AT_ONCE, HELD_SECONDS, UNTRIED_SECONDS, WakeUps
from extender.gates.releaser import Releaser
from gpushare.contract import ANNOTATION_POKE
from gpushare.ledger.holds import Claim, Hold, Slot
from gpushare.quota.namespaces import Namespace
from gpushare.quota.quota import Quota
from tests.builders import pod
from tests.unit.extender.gangs.driver import GangCluster
from tests.unit.extender.queue.test_admission import Patched
from tests.unit.extender.scripted import bound, changed


class Stage:
    """Node n has one GPU of 16; what waits there was rejected."""

    def __init__(self, *sizes: int) -> None:
        self.cluster = GangCluster({"n": sizes or (16,)})
        self.api, self.time = Patched(self.cluster), self.cluster.time
        state, right = self.cluster.cluster.state, PatchRight(self.api, self.time)
        self.ledger = state.ledger
        self._wake_ups = WakeUps(
            state,
            self.cluster.gangs,
            self.cluster.planning,
            Pokes(Releaser(self.api), right, self.time),
            right,
        )

    async def reject(
        self, name: str, units: int = 16, priority: int = 0, namespace: str = "default"
    ) -> None:
        meta, spec = {"namespace": namespace}, {"priority": priority}
        made = changed(pod(name, units), meta, spec=spec)
        if name not in self.cluster.kube.pods:
            self.cluster.add(made)
        assert (await self.cluster.offered(name))[0] == []

    async def pass_time(self, seconds: float = UNTRIED_SECONDS) -> None:
        """Check what waits, once now and once after some seconds."""
        await self._wake_ups.check()
        self.time.now += seconds
        self.cluster.cluster.expire_plans()
        await self._wake_ups.check()

    def poked(self) -> list[str]:
        found = [name for name, patch in self.api.patches.items() if _is_poke(patch)]
        self.api.patches.clear()
        return found


def _is_poke(patch) -> bool:
    return ANNOTATION_POKE in patch["metadata"]["annotations"]


async def test_a_pod_is_woken_when_a_hold_that_kept_its_room_has_expired():
    stage = Stage()
    stage.ledger.keep(Hold("gang", (Slot("n", ("GPU-0",), 16),), stage.time.now + 10))
    await stage.reject("p")
    await stage.pass_time()
    assert stage.poked() == []
    stage.time.now += 10
    stage.cluster.cluster.expire_plans()
    await stage.pass_time()
    assert stage.poked() == ["p"]
    assert (await stage.cluster.offered("p"))[0] == ["n"]


async def test_no_pod_is_woken_that_kube_scheduler_tries_by_itself():
    stage = Stage()
    stage.cluster.add(bound("old", 16))
    await stage.reject("p")
    stage.cluster.delete("old")
    await stage.pass_time(UNTRIED_SECONDS / 2)
    assert stage.poked() == []
    assert await stage.cluster.schedule("p") == {"p": "n"}
    await stage.pass_time()
    assert stage.poked() == []


async def test_a_nominated_pod_is_woken_that_kube_scheduler_has_tried_too_early():
    stage = Stage()
    stage.cluster.add(bound("old", 16))
    await stage.reject("p")
    slot = Slot("n", ("GPU-0",), 16, "uid-p")
    stage.ledger.keep(Claim("nominated/uid-p", (slot,), stage.time.now + 100, 0))
    stage.cluster.delete("old")
    await stage.pass_time()
    assert stage.poked() == ["p"]


async def test_a_pod_is_woken_for_what_is_claimed_for_it_also_beside_an_older_equal_pod():
    stage = Stage()
    stage.cluster.add(bound("old", 16))
    for name, created in (("older", "2026-01-01T00:00:00Z"), ("p", "2026-01-01T01:00:00Z")):
        stage.cluster.add(changed(pod(name, 16), {"creation_timestamp": created}))
        await stage.reject(name)
    slot = Slot("n", ("GPU-0",), 16, "uid-p")
    stage.ledger.keep(Claim("nominated/uid-p", (slot,), stage.time.now + 100, 0))
    stage.cluster.delete("old")
    await stage.pass_time()
    assert stage.poked() == ["p"]


async def test_a_pod_that_no_scheduler_has_asked_about_is_not_woken_and_nothing_is_held_for_it():
    stage = Stage()
    stage.cluster.add(changed(pod("p", 16), spec={"scheduler_name": "another"}))
    await stage.pass_time()
    assert stage.poked() == []
    assert stage.cluster.held == 0


async def test_exactly_those_are_woken_for_whom_there_is_room_the_most_important_first():
    stage = Stage(16, 16)
    stage.cluster.add(bound("one", 16, "GPU-0"), bound("two", 16, "GPU-1"))
    for name, priority in (("low", 0), ("high", 5), ("small", 0)):
        await stage.reject(name, 8 if name == "small" else 16, priority)
    stage.cluster.delete("one")
    await stage.pass_time()
    assert stage.poked() == ["high"]
    await stage.pass_time()
    assert stage.poked() == []


async def test_equal_pods_are_woken_one_for_each_place():
    stage = Stage()
    stage.cluster.add(bound("old", 16))
    for number in range(5):
        await stage.reject(f"p{number}", 8)
    stage.cluster.delete("old")
    await stage.pass_time()
    await stage.pass_time()
    assert sorted(stage.poked()) == ["p0", "p1"]


async def test_room_is_free_again_if_kube_scheduler_does_not_come():
    stage = Stage()
    stage.cluster.add(bound("old", 16))
    await stage.reject("p")
    stage.cluster.delete("old")
    await stage.pass_time()
    assert stage.poked() == ["p"]
    await stage.pass_time(HELD_SECONDS)
    assert stage.ledger.slot_of("uid-p") is None
    assert stage.poked() == []  # not at once again: rules that only kube-scheduler knows reject it
    stage.time.now += 300
    await stage.pass_time()
    assert stage.poked() == ["p"]


async def test_without_the_right_to_patch_pods_nothing_is_held():
    stage = Stage()
    stage.api.allowed = False
    stage.cluster.add(bound("old", 16))
    await stage.reject("p")
    stage.cluster.delete("old")
    await stage.pass_time()
    assert stage.poked() == []
    assert stage.ledger.slot_of("uid-p") is None


def in_namespace(name: str, namespace: str, units: int = 16):
    return changed(pod(name, units), {"namespace": namespace})


async def test_a_pod_over_the_quota_is_woken_when_the_quota_is_raised_and_nothing_else_happens():
    stage = Stage()
    namespaces = stage.cluster.cluster.state.namespaces
    namespaces.put(Namespace("default", quota=Quota(8)))
    await stage.reject("p")
    await stage.pass_time()
    assert stage.poked() == []
    namespaces.put(Namespace("default", quota=Quota(16)))
    await stage.pass_time()
    assert stage.poked() == ["p"]
    assert (await stage.cluster.offered("p"))[0] == ["n"]


async def test_a_namespace_over_its_quota_does_not_keep_pods_of_others_from_being_woken():
    stage = Stage()
    namespaces = stage.cluster.cluster.state.namespaces
    namespaces.put(Namespace("a", quota=Quota(8)))
    stage.cluster.add(bound("old", 16), in_namespace("p", "a"), in_namespace("q", "b"))
    await stage.reject("p")
    await stage.reject("q")
    stage.cluster.delete("old")
    await stage.pass_time()
    assert stage.poked() == ["q"]


async def test_no_more_pods_are_woken_than_the_quota_permits():
    stage = Stage(16, 16)
    stage.cluster.add(bound("one", 16, "GPU-0"), bound("two", 16, "GPU-1"))
    stage.cluster.cluster.state.namespaces.put(Namespace("a", quota=Quota(16)))
    for name in ("p", "q"):
        stage.cluster.add(in_namespace(name, "a"))
        await stage.reject(name)
    stage.cluster.delete("one", "two")
    await stage.pass_time()
    assert len(stage.poked()) == 1


class Hopeless(NamedTuple):
    """A pod that fits nowhere; most differ in what they request."""

    extra: int
    priority: int
    namespace: str


HOPELESS = st.builds(
    Hopeless, st.integers(1, 90), st.integers(-5, 5), st.sampled_from(["a", "b", "c"])
)


@settings(max_examples=15)
@given(
    before=st.lists(HOPELESS, min_size=AT_ONCE, max_size=5 * AT_ONCE, unique=True),
    later=st.lists(HOPELESS, max_size=2 * AT_ONCE, unique=True),
    priority=st.integers(-5, 5),
    namespace=st.sampled_from(["a", "mine"]),
)
async def test_whoever_fits_is_woken_soon_whatever_hopeless_pods_wait(
    before: list[Hopeless], later: list[Hopeless], priority: int, namespace: str
):
    """Also if more of them come all the time, and something changes all the time."""
    stage = Stage()
    stage.ledger.keep(Hold("gang", (Slot("n", ("GPU-0",), 16),), stage.time.now + 10))
    for number, each in enumerate(before):
        await stage.reject(f"before-{number}", 16 + each.extra, each.priority, each.namespace)
    await stage.reject("p", 16, priority, namespace)
    await stage.pass_time()
    stage.time.now += 10
    stage.cluster.cluster.expire_plans()
    rounds, turns = 0, 1 + (len(before) if namespace == "a" else 0) // (AT_ONCE // 3)
    while not stage.poked():
        assert rounds <= turns
        for each in later:
            if each.namespace != namespace:
                name = f"later-{rounds}-{each.extra}-{each.priority}-{each.namespace}"
                units = 200 + 100 * rounds + each.extra
                await stage.reject(name, units, each.priority, each.namespace)
        await stage.pass_time()
        rounds += 1
