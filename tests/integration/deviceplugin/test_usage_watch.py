"""The memory that pods really use is measured, and overuse is reported."""

import threading
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from deviceplugin.cards.node_cards import NodeCards
from deviceplugin.cards.survey import Terms
from deviceplugin.driver.interface import ProcessMemory
from deviceplugin.errors import DriverError
from deviceplugin.kubelet.watched_pods import NodePods
from deviceplugin.usage.watch import UsageWatch
from gpushare.clock import SystemClock
from tests.fakes.driver import card
from tests.fakes.events import FakeEvents
from tests.fakes.pods import pod
from tests.waiting import eventually, running

pytestmark = pytest.mark.integration

FIRST, SECOND = card(0).uuid, card(1).uuid
MIB = 1 << 20


class FakeProcesses:
    def __init__(self) -> None:
        self.shown: dict[str, tuple[ProcessMemory, ...] | None] = {FIRST: (), SECOND: ()}
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


class Measured:
    def __init__(self, proc: Path) -> None:
        self.source, self.pods, self.events = FakeProcesses(), NodePods(), FakeEvents()
        self.proc = proc
        cards = NodeCards(Terms(1024), None)
        cards.seen([card(0), card(1)])
        self.watch = UsageWatch(
            source=self.source,
            cards=cards,
            pods=self.pods,
            kube=self.events,
            clock=SystemClock(),
            proc=proc,
            interval_seconds=0.01,
        )

    def process(self, pid: int, mib: int, uid: str | None) -> ProcessMemory:
        """One that is in the pod's control group, or in the host's."""
        folder = self.proc / str(pid)
        folder.mkdir(exist_ok=True)
        group = f"kubepods/burstable/pod{uid}/{'a' * 64}" if uid else "system.slice/x.service"
        (folder / "cgroup").write_text(f"0::/{group}\n")
        return ProcessMemory(pid, mib * MIB)


@pytest.fixture
async def measured(tmp_path):
    made = Measured(tmp_path)
    async with running(made.watch.run()):
        yield made
        made.source.let_go()


def shown(what: str, name: str, index: str, uuid: str) -> float | None:
    labels = {"namespace": "default", "pod": name, "card": index, "uuid": uuid}
    return REGISTRY.get_sample_value(f"gpushare_deviceplugin_pod_{what}_mib", labels)


def others(by: str) -> float | None:
    labels = {"card": "0", "uuid": FIRST, "by": by}
    return REGISTRY.get_sample_value("gpushare_deviceplugin_others_used_mib", labels)


UID = "5a3c2f0e-6d8b-4b7e-9c55-0f3f5f6c1a20"
GONE = "00000000-6d8b-4b7e-9c55-0f3f5f6c1a20"


async def test_used_and_requested_memory_are_both_shown(measured: Measured) -> None:
    measured.pods.replaced([pod("a", 2, cards=(FIRST,), uid=UID)])
    measured.source.shown = {
        FIRST: (
            measured.process(10, 500, UID),
            measured.process(11, 300, None),
            measured.process(12, 200, GONE),
        ),
        SECOND: (),
    }
    await eventually(lambda: shown("used", "a", "0", FIRST) == 500)
    assert shown("asked", "a", "0", FIRST) == 2048
    assert (others("host"), others("ended-pod"), others("unknown")) == (300, 200, 0)
    measured.pods.replaced([])
    await eventually(lambda: shown("used", "a", "0", FIRST) is None)
    assert shown("asked", "a", "0", FIRST) is None
    assert others("ended-pod") == 700, "its memory is not free before its process has ended"


async def test_overuse_is_one_event_on_the_pod(measured: Measured) -> None:
    measured.pods.replaced([pod("a", 1, cards=(FIRST,), uid=UID)])
    measured.source.shown = {FIRST: (measured.process(10, 1025, UID),)}
    await eventually(lambda: measured.events.told)
    asked = measured.source.asked
    await eventually(lambda: measured.source.asked > asked + 5)
    ((reason, kind, name, text),) = measured.events.told
    assert (reason, kind, name) == ("MemoryOveruse", "Pod", "a")
    assert "uses 1025 MiB" in text
    assert "requested only 1024 MiB" in text


async def test_without_the_hosts_process_ids_pods_have_no_values(
    measured: Measured, caplog
) -> None:
    measured.pods.replaced([pod("a", 1, cards=(FIRST,), uid=UID)])
    measured.source.shown = {FIRST: (ProcessMemory(99, 5000 * MIB),)}
    await eventually(lambda: others("unknown") == 5000)
    assert shown("used", "a", "0", FIRST) is None
    assert "hostPID: true" in caplog.text
    assert measured.events.told == []


async def test_a_driver_that_fails_or_hangs_removes_the_values_and_uses_no_second_thread(
    measured: Measured, monkeypatch
) -> None:
    monkeypatch.setattr("deviceplugin.usage.watch.ANSWER_SECONDS", 0.05)
    measured.pods.replaced([pod("a", 1, cards=(FIRST,), uid=UID)])
    measured.source.shown = {FIRST: (measured.process(10, 5, UID),)}
    await eventually(lambda: shown("used", "a", "0", FIRST) == 5)
    measured.source.silent = "gone"
    await eventually(lambda: shown("used", "a", "0", FIRST) is None)
    measured.source.silent = ""
    await eventually(lambda: shown("used", "a", "0", FIRST) == 5)
    for each in measured.source.may_answer.values():
        each.clear()
    await eventually(lambda: shown("used", "a", "0", FIRST) is None)
    assert threads() == ["usage 0", "usage 1"]
    measured.source.let_go()
    await eventually(lambda: shown("used", "a", "0", FIRST) == 5)


async def test_a_gpu_that_hangs_removes_only_its_own_values(
    measured: Measured, monkeypatch
) -> None:
    monkeypatch.setattr("deviceplugin.usage.watch.ANSWER_SECONDS", 0.05)
    measured.pods.replaced([pod("a", 1, cards=(FIRST,)), pod("b", 1, cards=(SECOND,))])
    await eventually(lambda: shown("used", "b", "1", SECOND) == 0)
    measured.source.may_answer[SECOND].clear()
    await eventually(lambda: shown("used", "b", "1", SECOND) is None)
    assert shown("used", "a", "0", FIRST) == 0
    asked = measured.source.asked
    await eventually(lambda: measured.source.asked > asked + 3)
    assert [name for name in threads() if name == "usage 1"] == ["usage 1"]


def threads() -> list[str]:
    return sorted(each.name for each in threading.enumerate() if each.name.startswith("usage"))
