"""``gpushare page``: the page of an extender behind another port, and nothing that decides."""

import asyncio
import json
import socket
from contextlib import AsyncExitStack

import aiohttp
import pytest
from aiohttp.test_utils import TestServer
from yarl import URL

from extender.routes import Routes
from gpushare.errors import SettingsError, Unreachable
from gpusharectl.page import served
from gpusharectl.reach.extender import Extender
from tests.builders import pod
from tests.unit.extender.scripted import Bench

PREFIX = "/gpushare-scheduler"


class Way:
    """Finds the extender that is there, and counts how often it was looked for."""

    def __init__(self, session):
        self.session, self.base, self.looked = session, None, 0
        self.found = None

    async def get(self):
        if self.found is None:
            self.looked += 1
            if self.base is None:
                raise Unreachable("no extender is ready")
            self.found = Extender(self.session, self.base, "the extender")
        return self.found

    def lost(self, found):
        self.found = None


class Stage:
    def __init__(self, bench, stack, way, session):
        self.bench, self.stack, self.way, self.session = bench, stack, way, session
        self.url = self.server = None

    async def start(self):
        self.server = TestServer(Routes(self.bench.cluster, self.bench.binder, list).app())
        await self.server.start_server()
        self.way.base = str(self.server.make_url("")).rstrip("/")

    def ask(self, path, method="GET", **more):
        return self.session.request(method, self.origin + path, **more)


@pytest.fixture
async def stage():
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        made = Stage(Bench(16, 16), stack, Way(session), session)
        await made.start()
        made.url = await stack.enter_async_context(served(made.way, 0))
        made.origin = made.url.removesuffix(f"{PREFIX}/page")
        yield made
        await made.server.close()


async def whole(answer):
    """Read until the stream has told all."""
    async with asyncio.timeout(5):
        while await answer.content.readline() != b"event: whole\n":
            pass


async def test_the_page_its_files_and_its_stream_are_there_as_the_extender_gives_them(stage):
    async with stage.session.get(stage.url) as answer:
        assert answer.status == 200
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert "<title>gpushare</title>" in await answer.text()
    async with stage.ask(f"{PREFIX}/page/main.js") as answer:
        assert (answer.status, answer.content_type) == (200, "text/javascript")
    stage.bench.add(pod("w", 8))
    async with stage.ask(f"{PREFIX}/explain/default/w?nodes=3") as answer:
        assert (await answer.json())["state"] == "waiting"
    async with stage.ask(f"{PREFIX}/changes") as answer:
        await whole(answer)
        stage.bench.add(pod("comes", 8))
        async with asyncio.timeout(5):
            while not (line := await answer.content.readline()).startswith(b"data: "):
                pass
            while b"comes" not in line:
                line = await answer.content.readline()
    assert stage.way.looked == 1


@pytest.mark.parametrize("verb", ["bind", "filter", "prioritize", "preempt", "what-if"])
async def test_nothing_else_of_the_extender_is_reached_by_it(stage, verb):
    for path in (f"{PREFIX}/{verb}", f"{PREFIX}/page/../{verb}", f"{PREFIX}/page", "/metrics"):
        async with stage.ask(path, "POST", data=b"{}") as answer:
            assert answer.status in {404, 405}
    assert stage.bench.kube.bindings == []


@pytest.mark.parametrize("dots", ["..", "%2e%2e"])
async def test_no_page_above_those_is_reached_by_it(stage, dots):
    for path in (f"explain/{dots}/inspect", f"explain/x/{dots}", f"page/{dots}"):
        url = URL(f"{stage.origin}{PREFIX}/{path}", encoded=True)
        async with stage.session.get(url) as answer:
            assert (answer.status, await answer.json()) == (404, {"Error": "page not found"})


async def test_pages_of_other_sites_read_nothing_through_it(stage):
    async with stage.ask(f"{PREFIX}/changes", headers={"Host": "evil.example"}) as answer:
        assert answer.status == 421
    cross = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}
    async with stage.ask(f"{PREFIX}/changes", headers=cross) as answer:
        assert answer.status == 403


async def test_when_an_extender_goes_the_next_one_is_looked_for(stage):
    async with stage.ask(f"{PREFIX}/changes") as answer:
        await whole(answer)
        await stage.server.close()
        async with asyncio.timeout(5):
            assert b"shutting down" in await answer.content.read()
    stage.way.base, statuses = None, []
    for _ in range(2):
        async with stage.ask(f"{PREFIX}/changes") as answer:
            statuses.append((answer.status, json.loads(await answer.text())["Error"]))
    assert [status for status, _ in statuses] == [502, 502]
    assert statuses[-1][1] == "no extender is ready"
    await stage.start()
    async with stage.ask(f"{PREFIX}/changes") as answer:
        await whole(answer)


async def test_a_port_that_is_taken_is_said_with_what_to_do():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(SettingsError, match="use --port for another"):
            async with served(None, taken.getsockname()[1]):
                pass
