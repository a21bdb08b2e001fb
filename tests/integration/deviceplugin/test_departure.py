"""A plugin that stops waits for its successor, and for pods that are not admitted yet."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from deviceplugin.lifecycle import departure
from deviceplugin.lifecycle.departure import Departure
from deviceplugin.lifecycle.handover import (
    FILE,
    LEFT,
    REGISTERED,
    TAKE_OVER,
    Predecessor,
    Successors,
)
from gpushare.clock import Clock, SystemClock
from gpushare.process.lifetime import cancel
from localcluster.wait import patient
from tests.fakes.clock import FakeClock
from tests.fakes.driver import FakeDriver, card
from tests.fakes.kubelet import FakeKubelet
from tests.fakes.pods import pod
from tests.integration.deviceplugin.plugin import Plugin
from tests.waiting import eventually

pytestmark = pytest.mark.integration

UNITS = 30


class Leaving:
    """A plugin that is stopping; ``task`` returns when it has stopped."""

    def __init__(self, folder: Path, plugin: Plugin, clock: Clock | None = None) -> None:
        self.folder, self.plugin = folder, plugin
        self.handed_over = self.announced = self.is_serving = False
        self.standbys: list[asyncio.StreamWriter] = []
        self.on_announcement: Callable[[], None] = lambda: None
        self.departure = Departure(
            registrar=plugin.registrar,
            service=plugin.service,
            report=self,
            pods=plugin.watch,
            checkpoint=plugin.checkpoint,
            confirmed=plugin.driver_watch.has_shown,
            clock=clock or SystemClock(),
        )

    def serves(self) -> None:
        self.is_serving = True

    async def announce_leaving(self) -> bool:
        self.announced = True
        self.on_announcement()
        return True

    async def hand_over(self) -> None:
        self.handed_over = True

    def begin(self, successors: Successors) -> None:
        self.task = asyncio.create_task(
            self.departure.leave(successors, is_one_coming=False, handed_over=self.hand_over)
        )

    async def told(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Stand by until this plugin says that another is to take over."""
        reader, writer = await asyncio.open_unix_connection(str(self.folder / FILE))
        self.standbys.append(writer)
        assert await asyncio.wait_for(reader.readline(), patient(10)) == TAKE_OVER
        return reader, writer


@pytest.fixture
async def leaving(folder: Path, kubelet: FakeKubelet) -> AsyncIterator[Leaving]:
    plugin = Plugin(folder, kubelet, FakeDriver(card(0), card(1)))
    plugin.cards.seen([card(0), card(1)])
    registering = asyncio.create_task(plugin.registrar.run())
    await kubelet.until(lambda: kubelet.allocatable == UNITS)
    await eventually(plugin.registrar.is_read_once.is_set)
    await cancel([registering])
    made = Leaving(folder, plugin)
    successors = Successors(folder)
    async with successors.listening():
        made.begin(successors)
        yield made
        await cancel([made.task])
    for standby in made.standbys:
        standby.close()
    await plugin.endpoint.close()


def bound(leaving: Leaving, name: str):
    """A pod that was bound to the node, and that the kubelet has not admitted."""
    made = pod(name, 5, cards=(card(0).uuid,))
    leaving.plugin.watch.changed(made)
    return made


async def test_a_node_takes_pods_once_the_kubelet_knows_its_devices(
    folder: Path, kubelet: FakeKubelet
) -> None:
    plugin = Plugin(folder, kubelet, FakeDriver(card(0), card(1)))
    plugin.cards.seen([card(0), card(1)])
    kubelet.write_checkpoint()
    kubelet.may_take_in.clear()
    arriving = Leaving(folder, plugin)
    tasks = [asyncio.create_task(arriving.departure.arrive(None))]
    tasks.append(asyncio.create_task(plugin.registrar.run()))
    await eventually(lambda: kubelet.lists)
    await eventually(plugin.registrar.is_read_once.is_set)
    assert not arriving.is_serving
    kubelet.may_take_in.set()
    await eventually(lambda: arriving.is_serving)
    assert kubelet.allocatable == UNITS
    await cancel(tasks)
    await plugin.endpoint.close()


async def test_an_unexpected_error_while_it_leaves_is_raised(
    leaving: Leaving, folder: Path
) -> None:
    await cancel([leaving.task])

    def fail() -> None:
        raise RuntimeError("nobody expects this")

    leaving.on_announcement = fail
    leaving.begin(Successors(folder))
    with pytest.raises(RuntimeError, match="nobody expects this"):
        await leaving.task


async def test_without_a_successor_the_plugin_serves_until_all_pods_are_admitted(
    leaving: Leaving, kubelet: FakeKubelet
) -> None:
    late = bound(leaving, "late")
    await eventually(lambda: leaving.announced)
    for known in (1, 2):
        _, writer = await leaving.told()
        writer.close()
        await kubelet.until(lambda wanted=known + 1: kubelet.registrations >= wanted)
    assert not leaving.task.done()
    await kubelet.admit(late)
    await asyncio.wait_for(leaving.task, patient(10))
    assert not leaving.handed_over


class ReadClock(FakeClock):
    """A clock that counts how often it was read."""

    reads = 0

    def monotonic(self) -> float:
        self.reads += 1
        return super().monotonic()


async def test_a_pod_that_a_slow_api_server_shows_late_is_admitted_before_the_plugin_leaves(
    leaving: Leaving, kubelet: FakeKubelet
) -> None:
    await cancel([leaving.task])
    clock = ReadClock(leaving.plugin.service.admitted_at + 100)
    slow = Leaving(leaving.folder, leaving.plugin, clock)

    def take_two_seconds() -> None:
        clock.now += 2

    async def advance(seconds: float) -> None:
        clock.now += seconds
        known = clock.reads
        await eventually(lambda: slow.task.done() or clock.reads >= known + 3)

    slow.on_announcement = take_two_seconds
    slow.begin(Successors(leaving.folder))
    await eventually(lambda: slow.announced)
    await advance(7)
    late = bound(leaving, "late")
    await advance(7)
    assert not slow.task.done()
    await kubelet.admit(late)
    await advance(100)
    await asyncio.wait_for(slow.task, patient(10))


async def test_the_plugin_hands_over_to_the_next_if_a_successor_fails(
    leaving: Leaving, kubelet: FakeKubelet
) -> None:
    bound(leaving, "late")
    _, writer = await leaving.told()
    writer.close()
    await kubelet.until(lambda: kubelet.registrations >= 2)
    reader, writer = await leaving.told()
    writer.write(REGISTERED)
    assert await asyncio.wait_for(reader.readline(), patient(10)) == LEFT
    await asyncio.wait_for(leaving.task, patient(10))
    assert leaving.handed_over


async def test_a_successor_that_takes_long_to_register_is_waited_for(
    leaving: Leaving, kubelet: FakeKubelet, monkeypatch
) -> None:
    reader, writer = await leaving.told()
    loop = asyncio.get_running_loop()
    now = loop.time
    monkeypatch.setattr(loop, "time", lambda: now() + 20)
    for _ in range(5):
        await asyncio.sleep(0)  # for whatever is due by now
    assert not reader.at_eof()
    writer.write(REGISTERED)
    assert await reader.readline() == LEFT
    await leaving.task
    assert leaving.handed_over


async def test_a_successor_that_never_registers_is_not_waited_for_longer_than_the_pod_may_end(
    leaving: Leaving, kubelet: FakeKubelet, monkeypatch
) -> None:
    await leaving.told()
    loop = asyncio.get_running_loop()
    now = loop.time
    monkeypatch.setattr(loop, "time", lambda: now() + 26)
    await leaving.task
    assert not leaving.handed_over


class Following:
    """A plugin that takes over, and whose driver hangs."""

    def __init__(self, leaving: Leaving, kubelet: FakeKubelet) -> None:
        leaving.plugin.cards.adopt(None)
        before = leaving.plugin.cards.saved()
        self.driver = FakeDriver(card(0), card(1))
        self.driver.hang(0)
        self.plugin = Plugin(leaving.folder, kubelet, self.driver, before=before)
        self.departure = Leaving(leaving.folder, self.plugin).departure

    @asynccontextmanager
    async def running(self, predecessor: Predecessor) -> AsyncIterator[None]:
        parts = (
            self.departure.register(predecessor),
            self.departure.arrive(predecessor),
            self.plugin.driver_watch.run(),
        )
        tasks = [asyncio.create_task(part) for part in parts]
        try:
            await eventually(lambda: self.driver.answered)
            yield
        finally:
            self.driver.let_go(0)
            await cancel(tasks)
            await self.plugin.endpoint.close()


@pytest.fixture
def following(leaving: Leaving, kubelet: FakeKubelet) -> Following:
    return Following(leaving, kubelet)


async def test_every_start_succeeds_while_a_plugin_with_a_slow_driver_takes_over(
    leaving: Leaving, following: Following, kubelet: FakeKubelet
) -> None:
    given = bound(leaving, "a")
    await kubelet.admit(given)
    bound(leaving, "late")
    outcomes: list[str] = []

    async def start_again_and_again() -> None:
        while True:
            try:
                await kubelet.pre_start(given)
                outcomes.append("")
            except grpc.aio.AioRpcError as err:
                outcomes.append(err.details())

    predecessor = Predecessor(*await leaving.told())
    starting = asyncio.create_task(start_again_and_again())
    async with following.running(predecessor):
        await eventually(lambda: len(outcomes) >= 30)
        assert kubelet.registrations == 1
        following.driver.let_go(0)
        await kubelet.until(lambda: kubelet.registrations >= 3)
        await leaving.task
        known = len(outcomes)
        await eventually(lambda: len(outcomes) >= known + 10)
        await cancel([starting])
    assert set(outcomes) == {""}


async def test_a_driver_that_does_not_answer_delays_a_takeover_by_some_seconds_only(
    leaving: Leaving, following: Following, kubelet: FakeKubelet, monkeypatch
) -> None:
    monkeypatch.setattr(departure, "CONFIRM_SECONDS", 0.2)
    predecessor = Predecessor(*await leaving.told())
    async with following.running(predecessor):
        await kubelet.until(lambda: kubelet.registrations >= 3)
    assert leaving.handed_over


async def test_a_takeover_waits_for_no_driver_when_the_other_plugin_has_ended(
    leaving: Leaving, following: Following, kubelet: FakeKubelet, monkeypatch
) -> None:
    monkeypatch.setattr(departure, "CONFIRM_SECONDS", 60.0)
    reader, writer = await leaving.told()
    async with following.running(Predecessor(reader, writer)):
        assert kubelet.registrations == 1
        reader.feed_eof()
        await kubelet.until(lambda: kubelet.registrations >= 2)
