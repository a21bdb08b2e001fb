"""The handler gets the state of the API server, however lists and watches fail."""

import asyncio
import time
import tracemalloc
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise

import msgspec
import pytest
from aiohttp import web

from gpushare.contract import RESOURCES_BEGIN
from gpushare.kube import client, informer, paths
from gpushare.kube.backoff import Backoff
from gpushare.kube.informer import Informer
from gpushare.objects.model import Pod
from localcluster.wait import patient
from tests.integration.kube.apiserver import FrontDoor, body, hang, reset, status, text, watch
from tests.waiting import eventually, running

pytestmark = pytest.mark.integration


class Seen:
    """Keep the names that the handler knows."""

    informer: Informer[Pod]

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.lists = 0

    def replaced(self, items: list[Pod]) -> None:
        self.lists += 1
        self.names = {item.metadata.name for item in items}

    def changed(self, item: Pod) -> None:
        self.names.add(item.metadata.name)

    def deleted(self, item: Pod) -> None:
        self.names.discard(item.metadata.name)

    async def until(self, *names: str, lists: int = 1) -> None:
        await eventually(lambda: self.names == set(names) and self.lists >= lists, 10)


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
async def informed(answers, tmp_path, **options) -> AsyncIterator[tuple[FrontDoor, Seen]]:
    door, seen = FrontDoor(), Seen()
    door.answers = answers
    async with door.connect(tmp_path) as kube:
        seen.informer = Informer(kube, paths.pods(), Pod, seen, **options)
        async with running(seen.informer.run()):
            yield door, seen


def watches(door: FrontDoor) -> list[str]:
    return [query["resourceVersion"] for _, _, query, _ in door.asked if "watch" in query]


async def test_a_list_in_pages_is_followed_by_changes(tmp_path):
    answers = [
        listed("5", "a", more="next"),
        listed("5", "b"),
        watch(event("ADDED", "c", "6"), event("DELETED", "a", "7"), then=hang),
    ]
    async with informed(answers, tmp_path) as (door, seen):
        await seen.until("b", "c")
    assert [query.get("continue") for _, _, query, _ in door.asked[:2]] == [None, "next"]
    assert watches(door) == ["5"]


@pytest.mark.parametrize("end", [None, reset], ids=["ended", "cut"])
async def test_a_watch_that_ends_resumes_from_the_last_version(tmp_path, end):
    bookmark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}}
    answers = [
        listed("5", "a"),
        watch(event("ADDED", "b", "6"), bookmark, then=end),
        watch(event("ADDED", "c", "10"), then=hang),
    ]
    async with informed(answers, tmp_path) as (door, seen):
        await seen.until("a", "b", "c")
    first, then = watches(door)
    assert first == "5"
    assert then == "9" if end is None else then in {"6", "9"}  # a cut may take what was on its way


@pytest.mark.parametrize("gone", [status(410, "Expired"), watch(EXPIRED)])
async def test_an_expired_version_lists_again_and_forgets_deleted_objects(tmp_path, gone):
    answers = [listed("5", "a"), gone, listed("50", "b"), watch(then=hang)]
    async with informed(answers, tmp_path) as (door, seen):
        await seen.until("b", lists=2)
        await seen.until("b")
    assert watches(door)[0] == "5"


class OneRetry(Backoff):
    """Allow one quick retry after each reset, and the next one after an hour."""

    def next(self) -> float:
        seconds, self._ceiling = self._ceiling, 3600.0
        return seconds


async def test_after_an_outage_an_expired_version_lists_again_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(informer, "Backoff", OneRetry)
    broken, expired = status(500, "InternalError"), status(410, "Expired")
    answers = [listed("5", "a"), broken, expired, listed("50", "b"), watch(then=hang)]
    async with informed(answers, tmp_path) as (_, seen):
        await seen.until("b", lists=2)


@pytest.mark.parametrize(
    "broken",
    [status(500, "InternalError"), status(403, "Forbidden"), reset, body("rubbish"), text(DEEP)],
)
async def test_a_failed_list_is_retried_with_backoff(tmp_path, broken):
    answers = [broken, broken, broken, listed("5", "a"), watch(then=hang)]
    async with informed(answers, tmp_path) as (door, seen):
        await seen.until("a")
    assert len(door.asked) <= 5


@pytest.mark.parametrize("broken", [msgspec.Raw(DEEP), {"metadata": 7}])
async def test_an_unreadable_object_neither_stops_the_informer_nor_loses_others(tmp_path, broken):
    answers = [
        listed("5", "a"),
        watch(event("ADDED", "b", "6"), {"type": "ADDED", "object": broken}),
        watch(event("ADDED", "c", "8"), then=hang),
    ]
    async with informed(answers, tmp_path) as (door, seen):
        await seen.until("a", "b", "c")
        assert seen.informer.restarts == {"lost": 1}
    assert watches(door) == ["5", "6"]


def deep(name: str, version: str) -> dict[str, object]:
    """Return a pod whose managed fields have as many levels as the API server accepts."""
    fields = msgspec.Raw(b'{"f:y":' * 9_990 + b"{}" + b"}" * 9_990)
    managed = [{"manager": "m", "fieldsV1": fields}]
    meta = {"name": name, "uid": name, "resourceVersion": version, "managedFields": managed}
    return {"metadata": meta, "spec": {}}


async def test_a_list_and_an_event_with_the_deepest_possible_pod_are_handled(tmp_path):
    listing = {"metadata": {"resourceVersion": "5"}, "items": [deep("a", "3")]}
    events = watch({"type": "ADDED", "object": deep("b", "6")}, event("ADDED", "c", "7"), then=hang)
    async with informed([text(msgspec.json.encode(listing)), events], tmp_path) as (door, seen):
        await seen.until("a", "b", "c")
        assert not seen.informer.restarts
    assert watches(door) == ["5"]


def escaped(name: str, version: str, characters: int) -> dict[str, object]:
    """Return a pod with one large variable, as the API server writes it: ``<`` has six bytes."""
    found = item(name, version)
    large = msgspec.Raw(b'"' + rb"\u003c" * characters + b'"')
    found["spec"] = {"containers": [{"name": "c", "env": [{"name": "X", "value": large}]}]}
    return found


async def test_an_event_with_the_largest_possible_object_is_handled(tmp_path):
    large = {"type": "ADDED", "object": escaped("large", "6", 1_500_000)}
    events = watch(large, event("ADDED", "b", "7"), then=hang)
    async with informed([listed("5", "a"), events], tmp_path) as (door, seen):
        await seen.until("a", "large", "b")
        assert not seen.informer.restarts
    assert watches(door) == ["5"]


async def test_a_line_over_the_limit_is_followed_by_a_list(tmp_path, monkeypatch):
    monkeypatch.setattr(client, "LINE_BYTES", 10_000)
    large = {"type": "ADDED", "object": escaped("large", "6", 10_000)}
    answers = [
        listed("5", "a"),
        watch(large, then=hang),
        listed("7", "a", "b"),
        watch(event("ADDED", "c", "8"), then=hang),
    ]
    async with informed(answers, tmp_path) as (door, seen):
        await seen.until("a", "b", "c", lists=2)
    assert watches(door) == ["5", "7"]


def paged(pods: Sequence[bytes]):
    """Answer lists with as many of these pods as requested, and watches with nothing."""

    async def page(request):
        if "watch" in request.query:
            return await watch(then=hang)(request)
        begin = int(request.query.get("continue") or 0)
        end = min(begin + int(request.query["limit"]), len(pods))
        meta = {"resourceVersion": "5", "continue": str(end) if end < len(pods) else ""}
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b'{"metadata":' + msgspec.json.encode(meta) + b',"items":[')
        for number in range(begin, end):
            await response.write(b"," if number > begin else b"")
            await response.write(pods[number])
        await response.write(b"]}")
        return response

    return page


async def test_pages_of_large_objects_have_fewer_objects(tmp_path, monkeypatch):
    monkeypatch.setattr(client, "PAGE_BYTES", 20_000)
    names = [f"p{number:02}" for number in range(40)]
    pods = [msgspec.json.encode(escaped(name, "1", 1000)) for name in names]
    async with informed([paged(pods)], tmp_path) as (_, seen):
        await seen.until(*names)


async def test_a_list_keeps_at_most_two_pages_in_memory(tmp_path):
    """36 pods have 100 MiB, and at most two pages are in memory at a time."""
    large = [msgspec.json.encode(escaped(f"p{number}", "1", 500_000)) for number in range(4)]
    tracemalloc.start()
    async with informed([paged(large * 9)], tmp_path) as (_, seen):
        await seen.until(*(f"p{number}" for number in range(4)))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 4 * client.PAGE_BYTES


async def test_objects_without_our_resources_are_skipped(tmp_path):
    ours = item("ours", "6") | {"spec": {"nodeSelector": {"x": "aliyun.com/gpu-mem"}}}
    answers = [
        listed("5", "a"),
        watch(
            event("ADDED", "b", "6"),
            {"type": "ADDED", "object": escaped("large", "7", 100_000)},
            {"type": "ADDED", "object": ours},
            event("ADDED", "c", "8"),
        ),
        watch(then=hang),
    ]
    async with informed(answers, tmp_path, naming=RESOURCES_BEGIN) as (door, seen):
        await seen.until("ours")
        await eventually(lambda: len(watches(door)) == 2)
        assert seen.names == {"ours"}
    assert watches(door) == ["5", "8"]


async def test_a_silent_connection_is_closed(tmp_path, monkeypatch):
    monkeypatch.setattr(informer, "IDLE_SECONDS", 0.2)
    answers = [listed("5", "a"), watch(then=hang), watch(event("ADDED", "b", "6"), then=hang)]
    async with informed(answers, tmp_path) as (door, seen):
        await seen.until("a", "b")
        assert seen.informer.restarts == {"silent": 1}
    assert watches(door)[:2] == ["5", "5"]


async def test_a_watch_that_is_behind_is_cut_and_resumes_from_its_version(tmp_path):
    answers = [listed("5", "a"), watch(then=hang), watch(event("ADDED", "b", "6"), then=hang)]
    async with informed(answers, tmp_path) as (door, seen):
        await eventually(lambda: watches(door))
        seen.informer.cut()
        seen.informer.cut()
        await seen.until("a", "b")
        assert seen.informer.restarts == {"behind": 1}
        assert seen.informer.age < patient(5)
    assert watches(door) == ["5", "5"]


async def test_retry_after_is_respected(tmp_path):
    busy = status(429, "TooManyRequests", retry_after="1")
    answers = [listed("5", "a"), busy, watch(event("ADDED", "b", "6"), then=hang)]
    async with informed(answers, tmp_path) as (_, seen):
        await seen.until("a")
        begun = time.monotonic()
        await seen.until("a", "b")
        assert time.monotonic() - begun >= 0.9
        assert seen.informer.restarts == {"refused": 1}


async def most_at_once(events: int, tmp_path) -> int:
    """Return the most events that the store handles between two turns of other tasks."""
    names = [f"p{number}" for number in range(events)]
    told = [event("ADDED", name, str(6 + number)) for number, name in enumerate(names)]
    sizes = [0]
    async with informed([listed("5"), watch(*told, then=hang)], tmp_path) as (_, seen):
        async with asyncio.timeout(patient(10)):
            while len(seen.names) < len(names):
                await asyncio.sleep(0)
                sizes.append(len(seen.names))
    return max(now - before for before, now in pairwise(sizes))


async def test_other_tasks_run_during_many_events(tmp_path):
    assert await most_at_once(2000, tmp_path) <= 2 * informer.EVENTS_AT_ONCE


async def test_other_tasks_run_after_a_long_event(tmp_path, monkeypatch):
    monkeypatch.setattr(informer, "LONG_SECONDS", 0.0)
    assert await most_at_once(200, tmp_path) == 1


@pytest.mark.parametrize("failures", [[], [status(500, "InternalError")]])
async def test_relist_ends_a_watch_which_resumes_from_the_list(tmp_path, failures):
    answers = [
        listed("1", "a"),
        watch(then=hang),
        *failures,
        listed("5", "a", "b"),
        watch(event("ADDED", "c", "6"), then=hang),
    ]
    async with informed(answers, tmp_path) as (door, seen):
        await eventually(lambda: watches(door))
        async with asyncio.timeout(patient(5)):
            await seen.informer.relist()
        assert {"a", "b"} <= seen.names
        await seen.until("a", "b", "c", lists=2)
        assert watches(door) == ["1", "5"]


async def test_relist_waits_for_a_list_that_began_afterwards(tmp_path):
    begun, release = asyncio.Event(), asyncio.Event()

    async def late(request):
        begun.set()
        await release.wait()
        return await listed("1", "a")(request)

    answers = [late, listed("5", "b"), watch(then=hang)]
    async with informed(answers, tmp_path) as (_, seen):
        await begun.wait()
        asked = asyncio.create_task(seen.informer.relist())
        await asyncio.sleep(0)
        release.set()
        async with asyncio.timeout(patient(5)):
            await asked
        assert seen.names == {"b"}
