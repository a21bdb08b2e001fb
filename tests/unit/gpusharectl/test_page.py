"""``gpushare page``: the page of an extender behind another port, and nothing that decides."""

import asyncio
import json
import socket
import ssl
from contextlib import AsyncExitStack

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from prometheus_client import REGISTRY
from yarl import URL

from extender.page import streams
from extender.page.usage import NO_PLUGIN, PluginUsage
from extender.routes import Routes
from gpushare.clock import SystemClock
from gpushare.errors import SettingsError, Unreachable
from gpusharectl.page import NOT_ENCRYPTED, served
from gpusharectl.reach.extender import Extender
from localcluster.wait import patient
from tests.builders import pod
from tests.fakes.certificates import certificate
from tests.unit.extender.scripted import Bench
from tests.waiting import eventually

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


class NoPlugins:
    """An API server that lists no device plugin."""

    async def list_page(self, *_, **__):
        return b'{"items": [], "metadata": {}}'


class Stage:
    def __init__(self, bench, stack, way, session):
        self.bench, self.stack, self.way, self.session = bench, stack, way, session
        self.url = self.server = None
        self.paths = []

    async def start(self, *middlewares):
        usage = PluginUsage(NoPlugins(), "gpushare-system", SystemClock())
        routes = Routes(self.bench.cluster, self.bench.binder, list, usage=usage)
        self.server = TestServer(routes.app(*middlewares))
        await self.server.start_server()
        self.way.base = str(self.server.make_url("")).rstrip("/")

    @web.middleware
    async def heard(self, request, handler):
        self.paths.append(request.path_qs)
        return await handler(request)

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
    async with asyncio.timeout(patient(5)):
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
    async with stage.ask(f"{PREFIX}/usage?node=n&node=unknown") as answer:
        assert await answer.json() == {"nodes": {"n": {"why": NO_PLUGIN}}}
    async with stage.ask(f"{PREFIX}/changes") as answer:
        await whole(answer)
        stage.bench.add(pod("comes", 8))
        async with asyncio.timeout(patient(5)):
            while not (line := await answer.content.readline()).startswith(b"data: "):
                pass
            while b"comes" not in line:
                line = await answer.content.readline()
    assert stage.way.looked == 1


async def test_a_body_that_a_proxy_compresses_arrives_readable(stage):
    @web.middleware
    async def compress(request, handler):
        response = await handler(request)
        response.enable_compression(web.ContentCoding.gzip)
        return response

    await stage.server.close()
    await stage.start(compress)
    async with stage.ask(f"{PREFIX}/page/main.js") as answer:
        assert "Content-Encoding" not in answer.headers
        assert "// The live page" in await answer.text()


async def test_a_token_entered_on_the_page_reaches_the_extender_but_not_without_tls(
    stage, tmp_path
):
    async def heard(request):
        return web.json_response({"heard": request.headers.get("Authorization")})

    app = web.Application()
    app.router.add_get(f"{PREFIX}/changes", heard)
    certified = certificate(tmp_path, "extender")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certified, certified.with_suffix(".key"))
    server = TestServer(app)
    await server.start_server(ssl=context)
    stage.stack.push_async_callback(server.close)
    trusting = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=certified))
    session = aiohttp.ClientSession(connector=trusting)
    stage.way.session = await stage.stack.enter_async_context(session)
    entered = {"Authorization": "Bearer entered"}
    async with stage.ask(f"{PREFIX}/changes", headers=entered) as answer:
        assert (answer.status, await answer.json()) == (401, {"Error": NOT_ENCRYPTED})
    stage.way.base, stage.way.found = f"https://127.0.0.1:{server.port}", None
    async with stage.ask(f"{PREFIX}/changes", headers=entered) as answer:
        assert await answer.json() == {"heard": "Bearer entered"}
    async with stage.ask(f"{PREFIX}/changes") as answer:
        assert await answer.json() == {"heard": None}


async def test_a_stream_ends_when_its_page_is_closed(stage, monkeypatch):
    monkeypatch.setattr(streams, "HEARTBEAT_SECONDS", 3600)  # it does not wait for the next one

    def viewers():
        return REGISTRY.get_sample_value("gpushare_extender_viewers")

    before = viewers()
    async with stage.ask(f"{PREFIX}/changes") as answer:
        await whole(answer)
        assert viewers() == before + 1
    await eventually(lambda: viewers() == before)


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


async def test_other_users_of_the_machine_read_nothing_without_the_secret_of_the_url(stage):
    port, secret = URL(stage.url).port, URL(stage.url).parts[1]
    assert len(secret) >= 43  # 256 bits
    for wrong in ("", f"/{secret[:-1]}", f"/{secret}x", f"/{secret.swapcase()}", "/%C3%A9", "/%FF"):
        for path in (f"{PREFIX}/page", f"{PREFIX}/changes", f"{PREFIX}/explain/default/w", ""):
            url = URL(f"http://127.0.0.1:{port}{wrong}{path}", encoded=True)
            async with stage.session.get(url) as answer:
                assert answer.status == 403, url
                assert secret not in await answer.text()
    assert stage.way.looked == 0
    async with served(stage.way, 0) as another:
        assert URL(another).parts[1] != secret


async def test_the_secret_reaches_neither_the_extender_nor_the_sites_of_links(stage):
    await stage.server.close()
    await stage.start(stage.heard)
    async with stage.ask(f"{PREFIX}/page") as answer:
        assert answer.headers["Referrer-Policy"] == "no-referrer"
    async with stage.ask(f"{PREFIX}/usage?node=n") as answer:
        await answer.read()
    assert stage.paths == [f"{PREFIX}/page", f"{PREFIX}/usage?node=n"]


async def test_when_an_extender_goes_the_next_one_is_looked_for(stage):
    async with stage.ask(f"{PREFIX}/changes") as answer:
        await whole(answer)
        await stage.server.close()
        async with asyncio.timeout(patient(5)):
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
