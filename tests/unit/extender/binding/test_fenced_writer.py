"""All writes go by the lease: begun only if they must end before it does."""

import asyncio

import pytest

from extender.binding.fenced_writer import Writer
from extender.binding.timing import SIDE_SECONDS
from gpushare.errors import NotLeading, OutcomeUnknown
from tests.builders import pod
from tests.fakes.clock import FakeClock
from tests.unit.extender.scripted import Bench


class Api:
    def __init__(self) -> None:
        self.wrote: list[str] = []
        self.error: Exception | None = None
        self.hold: asyncio.Event | None = None

    async def get_pod(self, namespace, name):
        return f"{namespace}/{name}"

    async def bind_pod(self, pod, node, annotations, *, seconds, may_go):
        await self._write("bind")

    async def patch_pod(self, namespace, name, patch, *, part, seconds, may_go):
        await self._write("nominate" if part else "release")

    async def evict_pod(self, pod, *, any_version, grace_seconds, seconds):
        assert seconds == SIDE_SECONDS
        await self._write("evict")

    async def create_event(self, namespace, event, *, seconds):
        assert seconds == SIDE_SECONDS
        await self._write("event")

    async def _write(self, what):
        if self.hold is not None:
            await self.hold.wait()
        if self.error is not None:
            raise self.error
        self.wrote.append(what)


def writer(api: Api, time: FakeClock, ends_at: float) -> Writer:
    return Writer(api, time, lambda: ends_at)


async def write_all(found: Writer) -> None:
    await found.bind_pod(pod("a", 1), "n", {}, seconds=3.0)
    await found.nominate_node(pod("a", 1), {})
    await found.release_pod(pod("a", 1), {})
    await found.evict_pod(pod("a", 1))
    await found.create_event("default", {})


async def test_with_time_enough_every_write_is_made():
    api, time = Api(), FakeClock()
    await write_all(writer(api, time, time.now + 3.0))
    assert api.wrote == ["bind", "nominate", "release", "evict", "event"]


async def test_no_write_is_begun_that_might_end_after_the_lease():
    api, time = Api(), FakeClock()
    found = writer(api, time, time.now + SIDE_SECONDS - 0.01)
    for write in (
        found.bind_pod(pod("a", 1), "n", {}, seconds=3.0),
        found.release_pod(pod("a", 1), {}),
        found.evict_pod(pod("a", 1)),
        found.create_event("default", {}),
    ):
        with pytest.raises(NotLeading, match="was not begun"):
            await write
    assert not api.wrote


async def test_a_process_that_slept_asks_the_clock_and_not_its_memory():
    api, time = Api(), FakeClock()
    found = writer(api, time, time.now + 6.0)
    await write_all(found)
    time.now += 60
    with pytest.raises(NotLeading):
        await found.bind_pod(pod("a", 1), "n", {}, seconds=3.0)


async def test_whoever_leads_reads_are_made():
    assert await writer(Api(), FakeClock(), 0.0).get_pod("default", "a") == "default/a"


async def test_it_is_quiet_once_the_last_write_has_ended():
    api, time = Api(), FakeClock()
    api.hold = asyncio.Event()
    found = writer(api, time, time.now + 60)
    write = asyncio.create_task(found.bind_pod(pod("a", 1), "n", {}, seconds=3.0))
    await asyncio.sleep(0)
    quiet = asyncio.create_task(found.quiet())
    await asyncio.sleep(0)
    assert not quiet.done()
    api.hold.set()
    await write
    await quiet


async def test_a_write_of_unknown_outcome_is_waited_for_until_it_cannot_land():
    api, time = Api(), FakeClock()
    api.error = OutcomeUnknown("no answer")
    found = writer(api, time, time.now + 60)
    with pytest.raises(OutcomeUnknown):
        await found.bind_pod(pod("a", 1), "n", {}, seconds=0.05)
    quiet = asyncio.create_task(found.quiet())
    await asyncio.sleep(0)
    assert not quiet.done()
    await quiet


async def test_a_bind_that_may_not_be_written_leaves_no_reserve():
    bench = Bench(16)
    bench.add(pod("a", 8))
    bench.binder._kube = writer(bench.kube, bench.time, bench.time.now + 1)
    with pytest.raises(Exception, match="lease ends before"):
        await bench.bind(pod("a", 8))
    assert bench.held == [(0, 0)]
    assert not bench.kube.bindings
