"""What namespaces say is followed, and holds while the API server forbids to read it."""

import asyncio
import logging
from contextlib import asynccontextmanager

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from extender.watch import namespaces
from extender.watch.namespaces import NamespaceWatch
from gpushare.contract import ANNOTATION_QUOTA, LABEL_QUEUE
from gpushare.kube.client import Kube
from gpushare.quota.namespaces import Namespace, Namespaces
from gpushare.quota.quota import Quota
from tests.integration.kube.apiserver import write_kubeconfig
from tests.waiting import eventually, running

pytestmark = pytest.mark.integration


class NamespaceServer:
    """A double of the API server that serves namespaces and nothing else."""

    def __init__(self):
        self.refusal, self.lists, self.refused = None, 0, 0
        self.objects = {}
        self._version = 1
        self._watches, self._silent = [], []
        self.app = web.Application()
        self.app.router.add_get("/api/v1/namespaces", self._namespaces)

    @asynccontextmanager
    async def watched(self, folder):
        """Run a watch of this API server; yield it with what it knows."""
        known = Namespaces()
        async with TestServer(self.app, shutdown_timeout=0) as server:
            path = write_kubeconfig(folder, str(server.make_url("")))
            async with Kube.connect(path) as kube:
                watch = NamespaceWatch(kube, known)
                async with running(watch.run()):
                    yield watch, known
                await self.cut()

    async def put(self, name, quota=None, *, queue=None, deleted=None):
        self._version += 1
        kind = "MODIFIED" if name in self.objects else "ADDED"
        meta = {"name": name, "resourceVersion": str(self._version)}
        meta |= {} if quota is None else {"annotations": {ANNOTATION_QUOTA: quota}}
        meta |= {} if queue is None else {"labels": {LABEL_QUEUE: queue}}
        meta |= {} if deleted is None else {"deletionTimestamp": deleted}
        self.objects[name] = {"metadata": meta}
        await self._tell(kind, self.objects[name])

    async def delete(self, name):
        self._version += 1
        gone = self.objects.pop(name)
        gone["metadata"]["resourceVersion"] = str(self._version)
        await self._tell("DELETED", gone)

    async def is_followed(self):
        await eventually(lambda: self._watches, 10)

    def fall_silent(self):
        """Send nothing more on the open watches, and do not end them."""
        self._silent += self._watches
        self._watches = []

    async def cut(self):
        """End all watches, as the API server does."""
        for watch in (*self._watches, *self._silent):
            watch.put_nowait(None)
        self._watches, self._silent = [], []

    async def _namespaces(self, request):
        self.lists += "watch" not in request.query
        if self.refusal is not None:
            self.refused += 1
            refused = {"code": self.refusal, "reason": "Refused", "message": "no"}
            return web.json_response(refused, status=self.refusal)
        if "watch" not in request.query:
            items = list(self.objects.values())
            meta = {"resourceVersion": str(self._version)}
            return web.json_response({"metadata": meta, "items": items})
        response, events = web.StreamResponse(), asyncio.Queue()
        self._watches.append(events)
        await response.prepare(request)
        while (event := await events.get()) is not None:
            await response.write(event)
        return response

    async def _tell(self, kind, found):
        event = msgspec.json.encode({"type": kind, "object": found}) + b"\n"
        for watch in self._watches:
            watch.put_nowait(event)


@pytest.fixture
def server():
    return NamespaceServer()


@pytest.fixture
def soon(monkeypatch):
    """Look every 50 ms instead of every minute, and every second second."""
    monkeypatch.setattr(namespaces, "SOON_SECONDS", 0.05)
    monkeypatch.setattr(namespaces, "AGAIN_SECONDS", 0.05)


async def until(known, *expected):
    """Wait until exactly these namespaces say something."""
    await eventually(lambda: sorted(known, key=lambda each: each.name) == list(expected), 10)


async def test_namespaces_are_listed_and_followed(server, tmp_path):
    await server.put("a", "8", queue="true")
    await server.put("plain")
    async with server.watched(tmp_path) as (watch, known):
        await until(known, Namespace("a", True, Quota(8)))
        assert watch.known.is_set()
        await server.is_followed()
        await server.put("b", "T4=2")
        await until(
            known, Namespace("a", True, Quota(8)), Namespace("b", quota=Quota(None, {"T4": 2}))
        )
        await server.put("a", "9", queue="true")
        await server.put("b")
        await until(known, Namespace("a", True, Quota(9)))
        await server.put("a", "9")
        await until(known, Namespace("a", quota=Quota(9)))
        await server.put("a", "9", deleted="2026-01-01T00:00:00Z")
        await until(known, Namespace("a", quota=Quota(9), is_ending=True))
        await server.delete("a")
        await until(known)


async def test_a_quota_that_cannot_be_read_is_a_problem_and_logged_once(server, tmp_path, caplog):
    await server.put("a", "lots")
    async with server.watched(tmp_path) as (_, known):
        await eventually(lambda: known.get("a").problem, 10)
        await server.is_followed()
        await server.put("a", "lots")
        await server.put("b", "1")
        await eventually(lambda: known.get("b").quota, 10)
        await server.put("a", "8")
        await eventually(lambda: known.get("a").quota == Quota(8), 10)
    said = [each for each in caplog.records if "its quota cannot be read" in each.message]
    assert len(said) == 1


async def test_what_happened_while_nobody_watched_is_known_afterwards(server, tmp_path):
    await server.put("a", "8")
    await server.put("gone", "8")
    async with server.watched(tmp_path) as (_, known):
        await eventually(lambda: known.get("gone").quota, 10)
        await server.is_followed()
        server.refusal = 410
        await server.cut()
        await server.put("a", "9")
        await server.delete("gone")
        await eventually(lambda: server.refused, 10)
        server.refusal = None
        await until(known, Namespace("a", quota=Quota(9)))


async def test_without_the_right_nothing_is_limited_until_it_is_given(
    server, tmp_path, soon, caplog
):
    caplog.set_level(logging.INFO)
    await server.put("a", "8")
    server.refusal = 403
    async with server.watched(tmp_path) as (watch, known):
        await watch.known.wait()
        assert known.why_unknown
        await eventually(lambda: server.lists > 3, 10)
        assert list(known) == []
        server.refusal = None
        await until(known, Namespace("a", quota=Quota(8)))
        assert not known.why_unknown
    said = [each for each in caplog.records if "cannot be read" in each.message]
    assert len(said) == 1


async def test_a_right_that_is_taken_away_lifts_no_quota(server, tmp_path, soon):
    await server.put("a", "8")
    async with server.watched(tmp_path) as (_, known):
        await until(known, Namespace("a", quota=Quota(8)))
        await server.is_followed()
        server.refusal = 403
        await server.cut()
        await eventually(lambda: known.why_unknown, 10)
        await until(known, Namespace("a", quota=Quota(8)))
        await server.put("a", "9")
        server.refusal = None
        await until(known, Namespace("a", quota=Quota(9)))
        assert not known.why_unknown


async def test_a_new_leader_goes_by_what_a_silent_watch_has_missed(server, tmp_path):
    await server.put("a", "8")
    async with server.watched(tmp_path) as (watch, known):
        await until(known, Namespace("a", quota=Quota(8)))
        await server.is_followed()
        server.fall_silent()
        await server.put("a", "9")
        await watch.relist()
        assert known.get("a").quota == Quota(9)


async def test_a_new_leader_does_not_wait_for_what_it_may_not_read(server, tmp_path, soon):
    await server.put("a", "8")
    async with server.watched(tmp_path) as (watch, known):
        await until(known, Namespace("a", quota=Quota(8)))
        await server.is_followed()
        server.refusal = 403
        await watch.relist()
        assert known.get("a").quota == Quota(8)


async def test_one_refusal_lifts_no_quota(server, tmp_path, soon):
    await server.put("a", "8")
    async with server.watched(tmp_path) as (_, known):
        await until(known, Namespace("a", quota=Quota(8)))
        for _ in range(namespaces.REFUSALS):
            await server.is_followed()
            before, server.refusal = server.refused, 403
            await server.cut()
            await eventually(lambda before=before: server.refused > before, 10)
            assert known.get("a").quota == Quota(8)
            server.refusal = None
        await server.is_followed()
        assert known.get("a").quota == Quota(8)


async def test_what_was_read_remains_known_while_nobody_answers(server, tmp_path):
    await server.put("a", "8")
    async with server.watched(tmp_path) as (_, known):
        await until(known, Namespace("a", quota=Quota(8)))
        await server.is_followed()
        server.refusal = 500
        await server.cut()
        await eventually(lambda: server.refused > 1, 10)
        await until(known, Namespace("a", quota=Quota(8)))
        server.refusal = None
        await server.is_followed()
        await server.put("a", "9")
        await until(known, Namespace("a", quota=Quota(9)))


async def test_it_is_not_known_what_namespaces_say_before_anybody_answers(server, tmp_path):
    server.refusal = 500
    async with server.watched(tmp_path) as (watch, _):
        await eventually(lambda: server.lists > 1, 10)
        assert not watch.known.is_set()
