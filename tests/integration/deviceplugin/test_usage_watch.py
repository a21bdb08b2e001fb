"""What pods really use is measured after they start and regularly; overuse is reported."""

import shutil
import threading
from collections.abc import Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from prometheus_client import REGISTRY

from deviceplugin.cards.node_cards import NodeCards
from deviceplugin.cards.survey import Terms
from deviceplugin.driver.interface import MemoryLimit, ProcessMemory, UtilizationSample
from deviceplugin.errors import DriverError
from deviceplugin.kubelet.node_pod import NodePod
from deviceplugin.kubelet.watched_pods import NodePods
from deviceplugin.usage.cgroups import Cgroups
from deviceplugin.usage.rules import NO_CGROUP, Usage
from deviceplugin.usage.watch import UsageWatch
from gpushare.objects.model import ContainerStatus, PodStatus
from tests.fakes.clock import FakeClock
from tests.fakes.driver import card
from tests.fakes.events import FakeEvents
from tests.fakes.pods import RUNNING, pod
from tests.waiting import eventually, running

pytestmark = pytest.mark.integration

FIRST, SECOND = card(0).uuid, card(1).uuid
MIB = 1 << 20
UID = "5a3c2f0e-6d8b-4b7e-9c55-0f3f5f6c1a20"
OTHER = "11111111-6d8b-4b7e-9c55-0f3f5f6c1a20"
GONE = "00000000-6d8b-4b7e-9c55-0f3f5f6c1a20"
BOX, NEXT_BOX = "a" * 64, "b" * 64
NOW = 1000.0
STAT = "{} (x) S " + " ".join("0" for _ in range(18)) + " {} 0"


class FakeSource:
    """``meanwhile`` is called between the two reads of the first GPU's processes."""

    def __init__(self) -> None:
        self.shown: dict[str, tuple[ProcessMemory, ...] | None] = {FIRST: (), SECOND: ()}
        self.sampled: dict[str, tuple[UtilizationSample, ...]] = {}
        self.limits: dict[tuple[str, Path], MemoryLimit] = {}
        self.meanwhile: Callable[[], object] = int
        self.silent = ""
        self.may_answer = {FIRST: threading.Event(), SECOND: threading.Event()}
        self.let_go()
        self.asked = 0

    def let_go(self):
        for each in self.may_answer.values():
            each.set()

    def count(self):
        self.asked += 1
        if self.silent:
            raise DriverError(self.silent)
        return len(self.may_answer)

    def uuid(self, position):
        uuid = (FIRST, SECOND)[position]
        self.may_answer[uuid].wait()
        return uuid

    def processes(self, position):
        return self.shown.get(self.uuid(position), ())

    def samples(self, position):
        if position == 0:
            self.meanwhile()
        return self.sampled.get(self.uuid(position), ())

    def limit(self, position, cgroup):
        return self.limits.get((self.uuid(position), cgroup), MemoryLimit())


class Measured:
    """``seen`` has every measurement."""

    def __init__(self, folder: Path) -> None:
        self.source, self.pods, self.events = FakeSource(), NodePods(), FakeEvents()
        self.pods.replaced([])
        self.proc, self.groups = folder / "proc", folder / "cgroup"
        self.proc.mkdir()
        self.groups.mkdir()
        self.clock = FakeClock(NOW)
        self.cards = NodeCards(Terms(1024), None)
        self.cards.seen([card(0), card(1)])
        self.seen: list[Usage] = []

    def watch(self, *, has_processes: bool = True, interval_seconds: float = 0.01) -> UsageWatch:
        return UsageWatch(
            source=self.source,
            cards=self.cards,
            pods=self.pods,
            kube=self.events,
            clock=self.clock,
            cgroups=Cgroups(self.groups),
            has_processes=has_processes,
            check=self.seen.append,
            proc=self.proc,
            interval_seconds=interval_seconds,
            settle_seconds=0.01,
        )

    @asynccontextmanager
    async def watching(self, **means):
        async with running(self.watch(**means).run()):
            try:
                yield self
            finally:
                self.source.let_go()

    def limiting(self) -> None:
        self.cards.seen([card(0, why_no_limit=""), card(1)])

    def process(self, pid: int, mib: int, uid: str | None, *, ticks: int = 0) -> ProcessMemory:
        """One that is in the pod's control group, or in the host's."""
        folder = self.proc / str(pid)
        folder.mkdir(exist_ok=True)
        group = f"kubepods/burstable/pod{uid}/{BOX}" if uid else "system.slice/x.service"
        (folder / "cgroup").write_text(f"0::/{group}\n")
        (folder / "stat").write_text(STAT.format(pid, ticks))
        return ProcessMemory(pid, mib * MIB)

    def group(self, uid: str = UID, box: str = BOX) -> Path:
        made = self.groups / f"kubepods/pod{uid}/{box}"
        made.mkdir(parents=True)
        return made

    async def measurements(self, count: int = 2) -> None:
        """Return after this many more."""
        before = len(self.seen)
        await eventually(lambda: len(self.seen) >= before + count)


@pytest.fixture
def made(tmp_path):
    return Measured(tmp_path)


@pytest.fixture
async def measured(made):
    async with made.watching():
        yield made


def started(owner: NodePod, box: str = BOX) -> NodePod:
    (container,) = owner.containers
    status = ContainerStatus(container.name, f"containerd://{box}", RUNNING)
    found = PodStatus(phase="Running", container_statuses=(status,))
    return msgspec.structs.replace(owner, status=found)


def shown(
    what: str, name: str, container: str = "", index: str = "0", uuid: str = FIRST
) -> float | None:
    labels = {"namespace": "default", "pod": name, "container": container}
    labels |= {"card": index, "uuid": uuid}
    return REGISTRY.get_sample_value(f"gpushare_deviceplugin_pod_{what}", labels)


def others(by: str) -> float | None:
    labels = {"card": "0", "uuid": FIRST, "by": by}
    return REGISTRY.get_sample_value("gpushare_deviceplugin_others_used_mib", labels)


async def test_used_and_requested_memory_are_both_shown(measured: Measured) -> None:
    measured.pods.replaced([started(pod("a", 2, cards=(FIRST,), uid=UID))])
    measured.source.shown = {
        FIRST: (
            measured.process(10, 500, UID),
            measured.process(11, 300, None),
            measured.process(12, 200, GONE),
        ),
        SECOND: (),
    }
    await eventually(lambda: shown("used_mib", "a", "app-0") == 500)
    assert shown("asked_mib", "a", "app-0") == 2048
    assert (others("host"), others("ended-pod"), others("unknown")) == (300, 200, 0)
    measured.pods.replaced([])
    await eventually(lambda: shown("used_mib", "a", "app-0") is None)
    assert shown("asked_mib", "a", "app-0") is None
    assert others("ended-pod") == 700, "its memory is not free before its process has ended"


async def test_utilization_is_shown_while_there_are_samples(measured: Measured) -> None:
    measured.pods.replaced([started(pod("a", 2, cards=(FIRST,), uid=UID))])
    measured.source.shown = {FIRST: (measured.process(10, 500, UID, ticks=50),)}
    now_us = int(NOW * 1e6)
    measured.source.sampled = {FIRST: (UtilizationSample(10, now_us, 40),)}
    await eventually(lambda: shown("sm_percent", "a", "app-0") == 40)
    measured.source.sampled = {}
    await eventually(lambda: shown("sm_percent", "a", "app-0") is None)
    assert shown("used_mib", "a", "app-0") == 500


async def test_a_restarted_container_leaves_no_series(measured: Measured) -> None:
    wanted = pod("a", [2], cards=(FIRST,), uid=UID)
    measured.pods.replaced([started(wanted)])
    measured.source.shown = {FIRST: (measured.process(10, 500, UID),)}
    await eventually(lambda: shown("used_mib", "a", "app-0") == 500)
    measured.pods.changed(wanted)
    await eventually(lambda: shown("used_mib", "a", "app-0") is None)
    assert shown("asked_mib", "a", "app-0") is None
    assert shown("asked_mib", "a") == 2048, "the share is still the pod's"


async def test_overuse_is_one_event_on_the_pod(measured: Measured) -> None:
    measured.pods.replaced([pod("a", 1, cards=(FIRST,), uid=UID)])
    measured.source.shown = {FIRST: (measured.process(10, 1025, UID),)}
    await eventually(lambda: shown("used_mib", "a") == 1025)
    await measured.measurements(5)
    assert measured.events.told == [], "it does not last yet"
    measured.clock.now += 60
    await eventually(lambda: measured.events.told)
    await measured.measurements(5)
    ((reason, kind, name, text),) = measured.events.told
    assert (reason, kind, name) == ("MemoryOveruse", "Pod", "a")
    assert "uses 1025 MiB" in text
    assert "requested only 1024 MiB" in text
    assert "No limit is known: the driver offers no limits" in text


async def test_without_the_hosts_process_ids_pods_have_no_values(
    measured: Measured, caplog
) -> None:
    measured.pods.replaced([pod("a", 1, cards=(FIRST,), uid=UID)])
    measured.source.shown = {FIRST: (ProcessMemory(99, 5000 * MIB),)}
    await eventually(lambda: others("unknown") == 5000)
    assert shown("used_mib", "a") is None
    assert "hostPID: true" in caplog.text
    assert measured.events.told == []


async def test_a_process_id_that_another_pod_has_got_counts_for_none(made: Measured) -> None:
    made.pods.replaced(
        [pod("a", 1, cards=(FIRST,), uid=UID), pod("b", 1, cards=(FIRST,), uid=OTHER)]
    )
    turns = iter(range(1, 10**9))

    def replace() -> None:
        turn = next(turns)
        made.process(10, 500, (UID, OTHER)[turn % 2], ticks=turn)

    made.source.shown = {FIRST: (made.process(10, 500, UID),)}
    made.source.meanwhile = replace
    async with made.watching():
        await made.measurements(5)
        assert {use.used_mib for usage in made.seen for use in usage.pods} == {0}
        made.source.meanwhile = int
        await eventually(lambda: {shown("used_mib", "a"), shown("used_mib", "b")} == {0, 500})


async def test_a_process_that_starts_or_ends_meanwhile_counts_the_next_time(made: Measured) -> None:
    made.pods.replaced([pod("a", 1, cards=(FIRST,), uid=UID)])
    old, new = made.process(10, 500, UID), made.process(11, 7, UID)

    def change() -> None:
        made.source.shown = {FIRST: (new,)}

    made.source.shown = {FIRST: (old,)}
    made.source.meanwhile = change
    async with made.watching():
        await eventually(lambda: shown("used_mib", "a") == 7)
        assert made.seen[0].pods[0].used_mib == 0
        assert others("unknown") == 0


async def test_a_driver_that_fails_or_hangs_removes_the_values_and_uses_no_second_thread(
    measured: Measured, monkeypatch
) -> None:
    monkeypatch.setattr("deviceplugin.usage.watch.ANSWER_SECONDS", 0.05)
    measured.pods.replaced([pod("a", 1, cards=(FIRST,), uid=UID)])
    measured.source.shown = {FIRST: (measured.process(10, 5, UID),)}
    await eventually(lambda: shown("used_mib", "a") == 5)
    measured.source.silent = "gone"
    await eventually(lambda: shown("used_mib", "a") is None)
    measured.source.silent = ""
    await eventually(lambda: shown("used_mib", "a") == 5)
    for each in measured.source.may_answer.values():
        each.clear()
    await eventually(lambda: shown("used_mib", "a") is None)
    assert shown("asked_mib", "a") == 1024
    assert threads() == ["usage 0", "usage 1"]
    measured.source.let_go()
    await eventually(lambda: shown("used_mib", "a") == 5)


async def test_a_gpu_that_hangs_removes_only_its_own_values(
    measured: Measured, monkeypatch
) -> None:
    monkeypatch.setattr("deviceplugin.usage.watch.ANSWER_SECONDS", 0.05)
    measured.pods.replaced([pod("a", 1, cards=(FIRST,)), pod("b", 1, cards=(SECOND,))])
    await eventually(lambda: shown("used_mib", "b", index="1", uuid=SECOND) == 0)
    measured.source.may_answer[SECOND].clear()
    await eventually(lambda: shown("used_mib", "b", index="1", uuid=SECOND) is None)
    assert shown("used_mib", "a") == 0
    await measured.measurements(3)
    assert [name for name in threads() if name == "usage 1"] == ["usage 1"]


async def test_what_a_gpu_that_hung_has_answered_late_is_not_used(made: Measured) -> None:
    made.pods.replaced([pod("a", 1, cards=(FIRST,), uid=UID)])
    made.source.shown = {FIRST: (made.process(10, 5, UID),)}

    def hang() -> None:
        made.clock.now += 60

    made.source.meanwhile = hang
    async with made.watching():
        await made.measurements(3)
        assert {use.used_mib for usage in made.seen for use in usage.pods} == {None}
        made.source.meanwhile = int
        await eventually(lambda: shown("used_mib", "a") == 5)


async def test_without_the_option_and_limits_the_driver_is_not_asked(made: Measured) -> None:
    made.group()
    made.pods.replaced([started(pod("a", 1, cards=(FIRST,), uid=UID))])
    async with made.watching(has_processes=False):
        await made.measurements(3)
    assert made.source.asked == 0
    assert shown("asked_mib", "a", "app-0") is None
    assert len(made.seen[-1].containers) == 1


async def test_where_the_driver_limits_a_container_its_limit_and_use_are_shown(
    made: Measured,
) -> None:
    made.limiting()
    own = made.group()
    made.source.limits[FIRST, own] = MemoryLimit(2048 * MIB, 300 * MIB)
    made.pods.replaced(
        [
            started(pod("a", 2, cards=(FIRST,), uid=UID)),
            started(pod("b", 1, cards=(SECOND,), uid=OTHER), NEXT_BOX),
        ]
    )
    async with made.watching(has_processes=False):
        await eventually(lambda: shown("used_mib", "a", "app-0") == 300)
        assert shown("limit_mib", "a", "app-0") == 2048
        assert shown("asked_mib", "b", "app-0", "1", SECOND) is None, "it is not measured"
        made.source.limits[FIRST, own] = MemoryLimit(why_unknown="Insufficient Permissions")
        await eventually(lambda: shown("limit_mib", "a", "app-0") is None)
        assert shown("used_mib", "a", "app-0") is None
        assert made.seen[-1].containers[0].limit.why_unknown == "Insufficient Permissions"


@pytest.mark.parametrize("is_below", [True, False])
async def test_a_limit_counts_on_the_containers_cgroup_and_on_that_of_crun_below_it(
    made: Measured, is_below: bool
) -> None:
    """With another runtime than crun, the user may have made the one below."""
    made.limiting()
    own = made.group()
    below = own / "container"
    below.mkdir()
    limited, other = (below, own) if is_below else (own, below)
    made.source.limits[FIRST, limited] = MemoryLimit(2048 * MIB, 300 * MIB)
    made.pods.replaced([started(pod("a", 2, cards=(FIRST,), uid=UID))])
    async with made.watching(has_processes=False):
        await eventually(lambda: shown("limit_mib", "a", "app-0") == 2048)
        assert shown("used_mib", "a", "app-0") == 300
        made.source.limits[FIRST, other] = MemoryLimit(soft_bytes=MIB)
        await made.measurements()
        assert made.seen[-1].containers[0].limit == MemoryLimit(2048 * MIB, 300 * MIB, MIB)


async def test_of_a_cgroup_that_is_gone_no_limit_is_known(made: Measured, monkeypatch) -> None:
    made.limiting()
    own = made.group()

    def gone(position: int, cgroup: Path) -> MemoryLimit:
        shutil.rmtree(cgroup)
        return MemoryLimit()

    monkeypatch.setattr(made.source, "limit", gone)
    made.pods.replaced([started(pod("a", 2, cards=(FIRST,), uid=UID))])
    async with made.watching(has_processes=False):
        await eventually(lambda: made.seen and not own.exists())
        await made.measurements()
        assert all(each.containers[0].limit.why_unknown == NO_CGROUP for each in made.seen)


async def test_a_container_that_starts_is_measured_at_once(made: Measured) -> None:
    made.limiting()
    wanted = pod("a", 2, cards=(FIRST,), uid=UID)
    made.pods.replaced([wanted])
    async with made.watching(has_processes=False, interval_seconds=3600):
        await eventually(lambda: made.seen)
        made.group()
        made.pods.changed(started(wanted))
        await eventually(lambda: len(made.seen) == 2)
        (row,) = made.seen[-1].containers
        assert (row.container_id, row.limit) == (BOX, MemoryLimit())
        made.group(box=NEXT_BOX)
        made.pods.changed(started(wanted, NEXT_BOX))
        await eventually(lambda: len(made.seen) == 3)
        assert made.seen[-1].containers[0].container_id == NEXT_BOX


def threads() -> list[str]:
    return sorted(each.name for each in threading.enumerate() if each.name.startswith("usage"))
