"""A killed extender's successor knows which room its last writes may still give away."""

import asyncio
import os
from contextlib import suppress

import pytest

from extender.binding.binder import BindRefused
from extender.binding.fenced_writer import Writer
from extender.binding.timing import OVERDUE_SECONDS, WRITE_SECONDS
from extender.binding.write_journal import WriteJournal, path_for
from gpushare.contract import LABEL_GANG
from gpushare.errors import ApiError, NoRoom, OutcomeUnknown
from tests.builders import pod
from tests.fakes.clock import FakeClock
from tests.unit.extender.scripted import Bench


@pytest.fixture
def path(tmp_path):
    return tmp_path / "gpushare-extender-1"


@pytest.fixture
def bench(path):
    """A GPU of 16 whose extender has taken over, and two pods that ask for 10 each."""
    made = Bench(16, notes=path)
    made.restart()
    made.add(pod("a", 10), pod("b", 10))
    return made


async def killed_during(bench, write):
    """Kill the extender while the API server still has the write."""
    bench.kube.hold = asyncio.Event()
    bench.kube.asked.clear()
    writing = asyncio.create_task(write)
    await bench.kube.asked.wait()
    bench.die()
    bench.kube.hold = None
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for each in others:
        each.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    with suppress(asyncio.CancelledError):
        await writing


async def test_room_of_a_killed_extenders_last_binding_is_not_given_away_twice(bench):
    await killed_during(bench, bench.bind(pod("a", 10)))
    bench.restart()
    with pytest.raises(NoRoom):
        await bench.bind(pod("b", 10))
    [(_, _, written)] = bench.kube.bindings
    bench.kube.land(pod("a", 10), "n", written)
    bench.watch_catches_up()
    assert bench.held == [(10, 0)]


async def test_a_pod_whose_binding_is_on_its_way_gets_the_same_gpu_again(path):
    bench = Bench(16, 16, notes=path)
    bench.restart()
    bench.add(pod("a", 10), pod("b", 10))
    await bench.bind(pod("b", 10))
    await killed_during(bench, bench.bind(pod("a", 10)))
    bench.kube.pods.pop("b")
    bench.restart()
    await bench.bind(pod("a", 10))
    first, again = (written for uid, _, written in bench.kube.bindings if uid == "uid-a")
    assert again == first


async def test_room_of_a_binding_that_never_lands_is_free_again(bench):
    await killed_during(bench, bench.bind(pod("a", 10)))
    bench.restart()
    for after in (0, OVERDUE_SECONDS, WRITE_SECONDS):
        await bench.settle(after=after)
    await bench.bind(pod("b", 10))
    assert bench.kube.bindings[-1][0] == "uid-b"


async def test_room_that_was_given_to_another_pod_is_not_reserved_again(bench):
    await bench.lose(pod("a", 10))
    await bench.settle()
    await bench.settle(after=OVERDUE_SECONDS)
    bench.journal.beat()
    await bench.settle(after=WRITE_SECONDS - 0.1)
    bench.journal.beat()
    await bench.settle(after=0.1)
    await bench.bind(pod("b", 10))
    bench.restart()
    assert not bench.journal.must_wait
    assert bench.held == [(10, 0)]


async def test_room_stays_reserved_after_two_kills(bench):
    await killed_during(bench, bench.bind(pod("a", 10)))
    bench._start()
    bench.journal.beat()
    bench.restart()  # the one in between has listed nothing
    assert not bench.journal.must_wait
    assert bench.held == [(0, 10)]


async def test_an_unknown_outcome_stays_reserved_after_a_kill(bench):
    await bench.lose(pod("a", 10))
    bench.restart()
    assert bench.held == [(0, 10)]


async def test_without_a_write_on_its_way_the_successor_decides_at_once(bench):
    await bench.bind(pod("a", 10))
    bench.kube.lands, bench.kube.outcomes = False, [ApiError("forbidden", code=403)]
    with pytest.raises(BindRefused):
        await bench.bind(pod("c", 2))
    bench.restart()
    assert not bench.journal.must_wait
    assert bench.held == [(10, 0)]


async def test_nothing_is_reserved_for_a_pod_that_is_bound_or_deleted(bench):
    await killed_during(bench, bench.bind(pod("a", 10)))
    bench.kube.pods.pop("a")
    bench.restart()
    assert bench.held == [(0, 0)]


async def test_the_successor_waits_if_the_last_write_was_no_binding(bench, path):
    async def patch_pod(*_, **__):
        raise OutcomeUnknown("no answer")

    bench.kube.patch_pod = patch_pod
    writer = Writer(bench.kube, bench.time, lambda: float("inf"), bench.journal)
    with pytest.raises(OutcomeUnknown):
        await writer.release_pod(pod("a", 10), {})
    bench.die()
    assert WriteJournal.open(path, bench.time).must_wait


async def test_the_successor_waits_if_a_member_of_a_gang_was_being_bound(bench, path):
    member = pod("a", 10, labels={LABEL_GANG: "g"})
    with bench.journal.noted("binding", 3.0, member, "n"):
        bench.die()
    assert WriteJournal.open(path, bench.time).must_wait


async def test_after_the_time_of_a_write_nothing_noted_is_believed(bench, path):
    bench.die()
    bench.time.now += WRITE_SECONDS
    assert WriteJournal.open(path, bench.time).must_wait


async def test_a_process_that_has_to_wait_is_not_believed_before_it_has_taken_over(path):
    for _ in range(2):
        journal = WriteJournal.open(path, FakeClock())
        assert journal.must_wait
        journal.beat()
        journal.close()


@pytest.mark.parametrize("damage", [b"\xff", b'{"version":2,"at":100.0}'])
async def test_a_damaged_file_is_not_believed(bench, path, damage):
    bench.die()
    with path.open("r+b") as file:
        file.seek(8)
        file.write(damage)
    assert WriteJournal.open(path, bench.time).must_wait


async def test_a_file_that_is_in_use_is_not_believed(bench, path):
    second = WriteJournal.open(path, bench.time)
    assert second.must_wait
    with second.noted("binding", 3.0, pod("a", 10), "n"):
        second.beat()
    bench.die()
    assert not WriteJournal.open(path, bench.time).must_wait


async def test_without_a_folder_pods_are_bound_and_the_successor_waits(tmp_path):
    bench = Bench(16, notes=tmp_path / "missing" / "notes")
    bench.restart()
    assert bench.journal.must_wait
    await bench.add_and_bind(pod("a", 10))


async def test_a_write_that_cannot_be_noted_makes_the_successor_wait(bench, path):
    with bench.journal.noted("x" * 10_000, 3.0):
        bench.die()
    assert WriteJournal.open(path, bench.time).must_wait


def test_each_configuration_has_its_own_file(tmp_path):
    paths = {path_for(tmp_path / name, kube) for name in "ab" for kube in (None, "k")}
    assert len(paths) == 4


def test_files_of_extenders_that_never_started_again_are_removed(bench, path):
    left = path.with_name("gpushare-extender-2")
    left.touch()
    os.utime(left, (0, 0))
    bench.time.now = 100_000
    bench.die()
    WriteJournal.open(path, bench.time).close()
    assert not left.exists()
    assert path.exists()
