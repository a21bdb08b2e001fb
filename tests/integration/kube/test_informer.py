"""What the API server has reaches the handler, through every way in which a watch can break."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import pairwise

import msgspec
import pytest

from gpushare.kube import client, informer
from gpushare.kube.informer import Informer
from gpushare.objects import Pod
from tests.integration.kube.apiserver import FrontDoor, body, hang, reset, status, text, watch

pytestmark = pytest.mark.integration


class Seen:
    """Keeps the names that the handler would have, and tells when they change."""

    informer: Informer[Pod]

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.lists = 0
        self.informer: Informer
        self._changed = asyncio.Event()

    def replaced(self, items: list[Pod]) -> None:
        self.lists += 1
        self.names = {item.metadata.name for item in items}
        self._changed.set()

    def changed(self, item: Pod) -> None:
        self.names.add(item.metadata.name)
        self._changed.set()

    def deleted(self, item: Pod) -> None:
        self.names.discard(item.metadata.name)
        self._changed.set()

    async def until(self, *names: str, lists: int = 1) -> None:
        async with asyncio.timeout(10):
            while self.names != set(names) or self.lists < lists:
                self._changed.clear()
                await self._changed.wait()


def item(name: str, version: str) -> dict[str, object]:
    return {"metadata": {"name": name, "uid": name, "resourceVersion": version}}


def listed(version: str, *names: str, more: str = "") -> object:
    meta = {"resourceVersion": version, "continue": more}
    return body({"metadata": meta, "items": [item(name, version) for name in names]})


def event(kind: str, name: str, version: str) -> dict[str, object]:
    return {"type": kind, "object": item(name, version)}


DEEP = b'{"metadata":{"name":"a","uid":"a"},"other":' + b"[" * 5000 + b"]" * 5000 + b"}"
EXPIRED = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}}


@asynccontextmanager
async def running(answers, tmp_path) -> AsyncIterator[tuple[FrontDoor, Seen]]:
    door, seen = FrontDoor(), Seen()
    door.answers = answers
    async with door.connect(tmp_path) as kube:
        seen.informer = Informer(kube, client.pods(), Pod, seen)
        task = asyncio.create_task(seen.informer.run())
        try:
            yield door, seen
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


def watches(door: FrontDoor) -> list[str]:
    return [query["resourceVersion"] for _, _, query, _ in door.asked if "watch" in query]


async def test_a_list_comes_in_pages_and_then_changes_follow(tmp_path):
    answers = [
        listed("5", "a", more="next"),
        listed("5", "b"),
        watch(event("ADDED", "c", "6"), event("DELETED", "a", "7"), then=hang),
    ]
    async with running(answers, tmp_path) as (door, seen):
        await seen.until("b", "c")
    assert [query.get("continue") for _, _, query, _ in door.asked[:2]] == [None, "next"]
    assert watches(door) == ["5"]


@pytest.mark.parametrize("end", [None, reset], ids=["ended", "cut"])
async def test_a_watch_that_ends_goes_on_from_the_last_version(tmp_path, end):
    bookmark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}}
    answers = [
        listed("5", "a"),
        watch(event("ADDED", "b", "6"), bookmark, then=end),
        watch(event("ADDED", "c", "10"), then=hang),
    ]
    async with running(answers, tmp_path) as (door, seen):
        await seen.until("a", "b", "c")
    first, then = watches(door)
    assert first == "5"
    assert then == "9" if end is None else then in {"6", "9"}  # a cut may take what was on its way


@pytest.mark.parametrize("gone", [status(410, "Expired"), watch(EXPIRED)])
async def test_a_version_that_is_too_old_lists_again_and_forgets_what_is_gone(tmp_path, gone):
    answers = [listed("5", "a"), gone, listed("50", "b"), watch(then=hang)]
    async with running(answers, tmp_path) as (door, seen):
        await seen.until("b", lists=2)
        await seen.until("b")
    assert watches(door)[0] == "5"


@pytest.mark.parametrize(
    "broken",
    [status(500, "InternalError"), status(403, "Forbidden"), reset, body("rubbish"), text(DEEP)],
)
async def test_a_list_that_fails_is_tried_again_but_not_in_a_storm(tmp_path, broken):
    answers = [broken, broken, broken, listed("5", "a"), watch(then=hang)]
    async with running(answers, tmp_path) as (door, seen):
        await seen.until("a")
    assert len(door.asked) <= 5


async def test_a_line_that_cannot_be_read_is_no_end(tmp_path):
    broken = watch({"type": "MODIFIED", "object": msgspec.Raw(DEEP)})
    answers = [listed("5", "a"), broken, watch(event("ADDED", "b", "6"), then=hang)]
    async with running(answers, tmp_path) as (door, seen):
        await seen.until("a", "b")
        assert seen.informer.restarts == {"lost": 1}
    assert watches(door) == ["5", "5"]


async def test_a_connection_that_went_silent_is_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(informer, "IDLE_SECONDS", 0.2)
    answers = [listed("5", "a"), watch(then=hang), watch(event("ADDED", "b", "6"), then=hang)]
    async with running(answers, tmp_path) as (door, seen):
        await seen.until("a", "b")
        assert seen.informer.restarts == {"silent": 1}
    assert watches(door)[:2] == ["5", "5"]


async def test_a_watch_that_was_seen_to_be_behind_is_cut_and_goes_on_from_its_version(tmp_path):
    answers = [listed("5", "a"), watch(then=hang), watch(event("ADDED", "b", "6"), then=hang)]
    async with running(answers, tmp_path) as (door, seen):
        async with asyncio.timeout(10):
            while not watches(door):  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.01)
        seen.informer.cut()
        seen.informer.cut()
        await seen.until("a", "b")
        assert seen.informer.restarts == {"behind": 1}
        assert seen.informer.age < 5
    assert watches(door) == ["5", "5"]


async def test_others_go_on_while_a_list_is_taken_in(monkeypatch):
    monkeypatch.setattr(informer, "SLICE_SECONDS", 0.0)
    steps = iter([None] * 50)
    turns = 0
    async with asyncio.TaskGroup() as tasks:
        taking = tasks.create_task(informer.in_slices(steps))
        while not taking.done():
            await asyncio.sleep(0)
            turns += 1
    assert turns >= 50
    assert not list(steps)


async def test_a_server_that_asks_for_time_is_given_it(tmp_path):
    busy = status(429, "TooManyRequests", retry_after="1")
    answers = [listed("5", "a"), busy, watch(event("ADDED", "b", "6"), then=hang)]
    async with running(answers, tmp_path) as (_, seen):
        await seen.until("a")
        begun = time.monotonic()
        await seen.until("a", "b")
        assert time.monotonic() - begun >= 0.9
        assert seen.informer.restarts == {"refused": 1}


async def test_an_object_that_cannot_be_read_does_not_lose_the_others(tmp_path):
    broken = {"type": "ADDED", "object": {"metadata": 7}}
    answers = [
        listed("5", "a"),
        watch(event("ADDED", "b", "6"), broken),
        watch(event("ADDED", "c", "8"), then=hang),
    ]
    async with running(answers, tmp_path) as (door, seen):
        await seen.until("a", "b", "c")
    assert watches(door) == ["5", "6"]


async def test_while_many_events_come_at_once_others_have_their_turn(tmp_path):
    names = [f"p{number}" for number in range(2000)]
    events = [event("ADDED", name, str(6 + number)) for number, name in enumerate(names)]
    sizes = [0]
    async with running([listed("5"), watch(*events, then=hang)], tmp_path) as (_, seen):
        async with asyncio.timeout(10):
            while len(seen.names) < len(names):
                await asyncio.sleep(0)
                sizes.append(len(seen.names))
    assert max(now - before for before, now in pairwise(sizes)) <= 2 * informer.EVENTS_AT_ONCE


class Opened:
    """A watch that is open and says nothing; a test can wait for it."""

    def __init__(self) -> None:
        self.there = asyncio.Event()

    async def __call__(self, request):
        self.there.set()
        return await hang(request)


async def test_a_list_that_is_asked_for_ends_a_watch_and_goes_on_from_there(
    tmp_path,
):
    opened = Opened()
    answers = [
        listed("1", "a"),
        watch(then=opened),
        listed("5", "a", "b"),
        watch(event("ADDED", "c", "6"), then=hang),
    ]
    async with running(answers, tmp_path) as (door, seen):
        async with asyncio.timeout(5):
            await opened.there.wait()
            await seen.informer.relist()
        assert {"a", "b"} <= seen.names
        await seen.until("a", "b", "c", lists=2)
        assert watches(door) == ["1", "5"]


async def test_a_list_that_is_asked_for_waits_for_one_that_began_afterwards(tmp_path):
    begun, release = asyncio.Event(), asyncio.Event()

    async def late(request):
        begun.set()
        await release.wait()
        return await listed("1", "a")(request)

    answers = [late, listed("5", "b"), watch(then=hang)]
    async with running(answers, tmp_path) as (_, seen):
        await begun.wait()
        asked = asyncio.create_task(seen.informer.relist())
        await asyncio.sleep(0)
        release.set()
        async with asyncio.timeout(5):
            await asked
        assert seen.names == {"b"}


async def test_a_list_that_is_asked_for_outlasts_a_server_that_fails(tmp_path):
    opened = Opened()
    answers = [
        listed("1", "a"),
        watch(then=opened),
        status(500, "InternalError"),
        listed("5", "b"),
        watch(then=hang),
    ]
    async with running(answers, tmp_path) as (_, seen):
        async with asyncio.timeout(5):
            await opened.there.wait()
            await seen.informer.relist()
        assert seen.names == {"b"}
