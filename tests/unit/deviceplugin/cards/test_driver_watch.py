"""Checks and events of a faulty driver affect no more than necessary."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from deviceplugin.cards import driver_watch
from deviceplugin.cards.driver_watch import DriverWatch
from deviceplugin.cards.node_cards import NodeCards
from deviceplugin.cards.survey import Terms
from deviceplugin.driver.interface import PhysicalCard
from deviceplugin.errors import DriverReplaced
from deviceplugin.lifecycle.preflight import Preflight
from gpushare.errors import RestartNeeded
from localcluster.wait import patient
from tests.fakes.driver import FakeDriver, card
from tests.waiting import eventually, running

FIRST, SECOND = card(0), card(1)


class Watched:
    def __init__(self, driver: FakeDriver, interval: float) -> None:
        self.driver = driver
        self.cards = NodeCards(Terms(1024), None, recover_seconds=0.2)
        self.watch = DriverWatch(driver, self.cards, interval)

    @property
    def offered(self) -> list[bool]:
        found = self.cards.inventory
        return [each.is_healthy for each in found.cards] if found else []

    def why_ill(self, card: PhysicalCard) -> str:
        return self.cards.notices[card.uuid][1]


@asynccontextmanager
async def watching(driver: FakeDriver, interval: float = 0.05) -> AsyncIterator[Watched]:
    made = Watched(driver, interval)
    async with running(made.watch.run()):
        await eventually(made.watch.has_shown.is_set)
        yield made


class Gate(FakeDriver):
    """A driver whose checks wait until the test lets each one continue."""

    def __init__(self, *shown) -> None:
        super().__init__(*shown)
        self.looks = threading.Semaphore(1)
        self.begun = 0

    def count(self):
        shown = tuple(self.shown)  # what is true when the check starts
        self.begun += 1
        assert self.looks.acquire(timeout=patient(10))
        found = super().count()
        self._looked_at = shown
        return found


async def test_an_xid_is_judged_by_a_check_that_started_after_it() -> None:
    well = replace(SECOND, recovery_action=0)
    driver = Gate(FIRST, well)
    async with watching(driver) as watched:
        await eventually(lambda: watched.offered == [True, True] and driver.begun == 2)
        driver.shown = [FIRST, replace(SECOND, recovery_action=1)]
        driver.happens(SECOND.uuid, 48)
        await eventually(lambda: watched.watch._recent)
        driver.looks.release()
        await eventually(lambda: driver.begun == 3)
        assert watched.offered == [True, True], "that check started before the event"
        driver.looks.release()
        await eventually(lambda: watched.offered == [True, False])
        driver.looks.release(100)


async def test_a_gpu_that_fell_off_the_bus_is_unhealthy_while_the_driver_hangs() -> None:
    driver = Gate(FIRST, SECOND)
    async with watching(driver) as watched:
        await eventually(lambda: watched.offered == [True, True] and driver.begun == 2)
        driver.happens(SECOND.uuid, 79)
        await eventually(lambda: watched.offered == [True, False])
        driver.looks.release(100)


async def test_xids_are_judged_by_the_catalogue_while_the_whole_driver_hangs(monkeypatch) -> None:
    monkeypatch.setattr(driver_watch, "ANSWER_SECONDS", 0.3)
    driver = Gate(FIRST, SECOND)
    async with watching(driver) as watched:
        await eventually(lambda: watched.offered == [True, True] and driver.begun == 2)
        for xid in (31, 119, 95):
            driver.happens(SECOND.uuid, xid)
        await eventually(lambda: watched.offered == [True, False])
        assert "XID 119" in watched.why_ill(SECOND)
        await eventually(lambda: watched.offered == [False, False])
        driver.looks.release(100)
        await eventually(lambda: watched.offered == [True, False])


@pytest.fixture
def hangs(monkeypatch) -> FakeDriver:
    """A driver whose second card can hang, and which is given little time."""
    monkeypatch.setattr(driver_watch, "ANSWER_SECONDS", 0.1)
    return FakeDriver(FIRST, SECOND)


async def test_a_gpu_that_hangs_is_unhealthy_by_itself_with_its_name(hangs: FakeDriver) -> None:
    async with watching(hangs) as watched:
        hangs.hang(1)
        await eventually(lambda: watched.cards.trouble(SECOND, at_start=True) is not None)
        assert watched.offered == [True, True], "suspect: nothing starts on it"
        await eventually(lambda: watched.offered == [True, False])
        _, text = watched.cards.notices[SECOND.uuid]
        assert SECOND.uuid in text
        assert "reset the GPU, or reboot the node" in text
        assert watched.cards.trouble(FIRST, at_start=True) is None
        assert not watched.watch.why_silent
        hangs.let_go(1)
        await eventually(lambda: watched.offered == [True, True])


async def test_an_xid_of_a_gpu_that_hangs_is_judged_by_the_catalogue(hangs: FakeDriver) -> None:
    async with watching(hangs) as watched:
        hangs.hang(1)
        hangs.happens(SECOND.uuid, 119)
        await eventually(lambda: watched.offered == [True, False])
        assert "XID 119, and the driver does not answer" in watched.why_ill(SECOND)
        hangs.let_go(1)


async def test_while_a_gpu_hangs_the_others_are_checked_as_usual(hangs: FakeDriver) -> None:
    async with watching(hangs) as watched:
        hangs.hang(1)
        await eventually(lambda: watched.offered == [True, False])
        hangs.shown = [replace(FIRST, recovery_action=0), SECOND]
        hangs.happens(FIRST.uuid, 109)
        await eventually(lambda: not watched.watch._recent)
        assert watched.offered == [True, False], "the driver advises nothing"
        hangs.shown = [replace(FIRST, recovery_action=1), SECOND]
        await eventually(lambda: watched.offered == [False, False])
        hangs.shown = [FIRST, SECOND]
        await eventually(lambda: watched.offered == [True, False])
        hangs.let_go(1)


async def test_a_gpu_that_hangs_has_one_thread_however_often_it_is_checked(
    hangs: FakeDriver,
) -> None:
    async with watching(hangs) as watched:
        hangs.hang(1)
        await eventually(lambda: watched.offered == [True, False])
        answered = hangs.answered
        await eventually(lambda: hangs.answered > answered + 10)
        names = [thread.name for thread in threading.enumerate()]
        assert names.count("driver 1") == 1
        hangs.let_go(1)


async def test_a_gpu_that_hung_from_the_start_leaves_the_others_to_be_offered(
    hangs: FakeDriver,
) -> None:
    hangs.hang(1)
    async with watching(hangs) as watched:
        assert watched.offered == [True]
        assert watched.cards.notices["the driver's number 1"][0] == "CardUnreadable"
        hangs.let_go(1)
        await eventually(lambda: watched.offered == [True, True])


async def test_many_events_cause_few_checks() -> None:
    driver = FakeDriver(FIRST, SECOND)
    async with watching(driver, interval=60) as watched:
        answered = driver.answered
        for _ in range(500):
            driver.happens(SECOND.uuid, 31)
        await eventually(lambda: driver._events.empty() and not watched.watch._recent)
        assert driver.answered - answered < 300, "three for each check"
        assert watched.offered == [True, True]


async def test_failed_waiting_backs_off_and_leaves_all_gpus_healthy() -> None:
    driver = FakeDriver(FIRST, SECOND)
    driver.deaf = "Unknown Error"
    async with watching(driver) as watched:
        await eventually(lambda: driver.waits >= 3)
        began, waits = asyncio.get_running_loop().time(), driver.waits
        await eventually(lambda: asyncio.get_running_loop().time() - began > 0.5)
        assert driver.waits - waits < 30
        assert watched.offered == [True, True]
        driver.deaf = ""
        await eventually(driver._events.empty)
        driver.happens(SECOND.uuid, 79)
        await eventually(lambda: watched.offered == [True, False])


async def test_a_driver_that_is_slow_is_waited_for_and_one_that_is_stuck_is_not(
    monkeypatch,
) -> None:
    monkeypatch.setattr(driver_watch, "ANSWER_SECONDS", 0.05)
    driver = Gate(FIRST, SECOND)
    async with watching(driver) as watched:
        await eventually(lambda: watched.offered == [True, True] and driver.begun == 2)
        for _ in range(100):
            driver.answered += 1  # single answers, none of which ends the check
            await asyncio.sleep(0.005)
        assert not watched.watch.why_silent
        await eventually(lambda: watched.offered == [False, False])
        assert "has not answered" in watched.watch.why_silent
        driver.looks.release(100)
        await eventually(lambda: watched.offered == [True, True])


async def test_a_machine_without_a_thread_left_is_waited_for(monkeypatch) -> None:
    driver = FakeDriver(FIRST, SECOND)
    async with watching(driver) as watched:

        def none_left(_: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", none_left)
            await eventually(lambda: "can't start new thread" in watched.watch.why_silent)
        await eventually(lambda: not watched.watch.why_silent)


async def test_a_driver_that_was_replaced_ends_the_program_after_the_kubelet_could_read_it(
    monkeypatch,
) -> None:
    monkeypatch.setattr(driver_watch, "LAST_WORDS_SECONDS", 0.2)
    driver = Replaced(FIRST, SECOND)
    watched = Watched(driver, 0.02)
    task = asyncio.create_task(watched.watch.run())
    await eventually(lambda: watched.offered == [True, True])
    driver.is_replaced = True
    await eventually(lambda: watched.offered == [False, False])
    assert not task.done()
    with pytest.raises(RestartNeeded, match="replaced while this program ran"):
        await task


class Replaced(FakeDriver):
    is_replaced = False

    def count(self):
        if self.is_replaced:
            raise DriverReplaced("the versions differ")
        return super().count()


async def test_a_library_that_never_matched_is_a_state_and_no_exit() -> None:
    driver = Replaced(FIRST, SECOND)
    driver.is_replaced = True
    watched = Watched(driver, 0.05)
    async with running(watched.watch.run()):
        await eventually(lambda: watched.watch.why_silent == "the versions differ")
        driver.is_replaced = False
        await eventually(lambda: watched.offered == [True, True])


async def test_a_driver_that_was_replaced_while_it_stood_by_ends_the_program(
    monkeypatch,
) -> None:
    monkeypatch.setattr(driver_watch, "LAST_WORDS_SECONDS", 0.0)
    driver = Replaced(FIRST)
    preflight = Preflight(driver, Terms(1024))
    await preflight.run()
    driver.is_replaced = True
    cards = NodeCards(Terms(1024), None)
    watch = DriverWatch(
        driver, cards, 0.02, calls=preflight.calls, has_answered=preflight.has_answered
    )
    with pytest.raises(RestartNeeded, match="replaced while this program ran"):
        await watch.run()


class Counting(FakeDriver):
    looks = 0

    def count(self):
        self.looks += 1
        return super().count()


async def test_a_driver_without_events_has_as_much_time_to_answer() -> None:
    driver = Counting(FIRST)
    async with watching(driver, interval=60.0) as watched:
        driver.silent = driver.deaf = "Driver Not Loaded"
        begun = driver.looks
        await eventually(lambda: driver.looks >= begun + 2 * driver_watch.PATIENCE)
        assert watched.offered == [True], "it has been silent for a few seconds of three minutes"
