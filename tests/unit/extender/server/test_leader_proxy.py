"""Forwarding between replicas, over real sockets and with real certificates."""

import asyncio
import json
import socket
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from yarl import URL

from extender.binding.timing import ANSWER_SECONDS, READ_SECONDS, WRITE_SECONDS
from extender.routes import Routes
from extender.server import leader_proxy, reading_verbs
from extender.server.leader_proxy import Forwarder, decide_for_replicas, decide_or_forward
from extender.server.tls import client_contexts, server_context
from gpushare.http_server import requests
from gpushare.kube.lease import Record
from gpusharectl.certificates import files as certificates
from localcluster.wait import patient
from tests.builders import pod
from tests.unit.extender.scripted import PREFIX, Bench, bound, wire_pod
from tests.unit.extender.server.test_tls import NAME, NOW, write
from tests.unit.extender.test_gangs import member

BIND = {"PodName": "a", "PodNamespace": "default", "PodUID": "uid-a", "Node": "n"}
FILTER = {"Pod": wire_pod(), "NodeNames": ["n"]}


class Leading:
    def __init__(self, decides: bool) -> None:
        self.decides, self.why_not = decides, "no replica is known to lead"


class Replica:
    """One replica with its own cache; ``leader`` is its view of the Lease."""

    def __init__(self, decides: bool) -> None:
        self.bench, self.leading = Bench(16, 16), Leading(decides)
        self.bench.add(pod("a", 8))
        self.leader: Record | None = None
        self.client: TestClient
        self.reader: TestClient
        self.address = ""

    @asynccontextmanager
    async def serve(self, tls):
        routes = Routes(self.bench.cluster, self.bench.binder, list)
        async with AsyncExitStack() as stack:
            made = Forwarder.connect(lambda: self.leader, client_contexts(tls), NAME)
            forwarder = await stack.enter_async_context(made)
            app = routes.app(decide_or_forward(self.leading, forwarder))
            self.client = await stack.enter_async_context(TestClient(TestServer(app)))
            reading = routes.reading_app(inside=[decide_or_forward(self.leading, forwarder)])
            self.reader = await stack.enter_async_context(TestClient(TestServer(reading)))
            runner = web.AppRunner(routes.app(decide_for_replicas(self.leading, (NAME,))))
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            context = server_context(tls)
            await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
            self.address = f"127.0.0.1:{runner.addresses[0][1]}"
            yield self

    def knows(self, leader: "Replica", version="1") -> None:
        self.leader = Record("x", version, 6.0, leader.address)

    async def post(self, verb, body, **more):
        response = await self.client.post(f"{PREFIX}/{verb}", json=body, **more)
        return response.status, await response.json()


@pytest.fixture
async def pair(tmp_path):
    tls = write(tmp_path)
    async with Replica(True).serve(tls) as leader, Replica(False).serve(tls) as follower:
        follower.knows(leader)
        yield leader, follower


async def test_a_follower_returns_the_leaders_response_to_a_filter(pair):
    leader, follower = pair
    leader.bench.add(bound("b", 16))
    body = {"Pod": wire_pod(), "NodeNames": ["n", "nowhere"]}
    assert await follower.post("filter", body) == await leader.post("filter", body)


async def test_a_follower_forwards_a_bind_and_writes_nothing_itself(pair):
    leader, follower = pair
    assert await follower.post("bind", BIND) == (200, {"Error": ""})
    assert [uid for uid, _, _ in leader.bench.kube.bindings] == ["uid-a"]
    assert not follower.bench.kube.bindings
    assert follower.bench.held == [(0, 0), (0, 0)]


@pytest.mark.parametrize("body", [b"{", b"", b"\xff", b'{"PodName": 1}'])
async def test_a_bad_body_gets_the_leaders_error_unchanged(pair, body):
    leader, follower = pair
    answers = [await each.client.post(f"{PREFIX}/bind", data=body) for each in (leader, follower)]
    assert [each.status for each in answers] == [400, 400]
    assert await answers[0].text() == await answers[1].text()


async def test_a_follower_limits_the_time_for_a_body_too(pair, monkeypatch):
    _, follower = pair
    monkeypatch.setattr(requests, "BODY_SECONDS", 0.1)
    never = asyncio.Event()

    async def trickle():
        yield b"{"
        await never.wait()

    async with asyncio.timeout(patient(5)):
        answer = await follower.client.post(f"{PREFIX}/filter", data=trickle())
    assert answer.status == 408


async def test_a_follower_reads_from_its_own_cache(pair):
    _, follower = pair
    follower.leader = None
    response = await follower.client.get(f"{PREFIX}/inspect")
    assert response.status == 200
    assert (await follower.client.get("/readyz")).status == 200


async def test_a_follower_returns_the_leaders_gangs_on_each_listener(pair):
    leader, follower = pair
    leader.bench.add(member("a"), member("b", "other"))
    for page in ("gangs", "gangs/other"):
        answers = [
            await client.get(f"{PREFIX}/{page}")
            for client in (leader.client, follower.client, follower.reader)
        ]
        assert [each.status for each in answers] == [200, 200, 200]
        said = [await each.json() for each in answers]
        assert said == [said[0]] * 3
        assert len(said[0]["gangs"]) == (2 if page == "gangs" else 1)


@pytest.mark.parametrize("page", ["queue", "queue/other", "quota", "quota/other"])
async def test_a_follower_returns_the_leaders_queue_and_quotas(pair, page):
    leader, follower = pair
    leader.bench.add(member("a"), member("b", "other"))
    clients = (leader.client, follower.client, follower.reader)
    answers = [await client.get(f"{PREFIX}/{page}") for client in clients]
    assert [each.status for each in answers] == [200, 200, 200]
    said = [await each.json() for each in answers]
    assert said == [said[0]] * 3


async def test_a_name_of_a_namespace_is_forwarded_as_it_came(pair):
    leader, follower = pair
    leader.bench.add(member("a"))
    for name in ("default%3Fx", "default%2F..%2F..%2Finspect", "%2E%2E"):
        url = URL(f"{PREFIX}/gangs/{name}", encoded=True)
        answer = await follower.reader.get(url)
        assert answer.status in {200, 404}
        assert (await answer.json()).get("gangs", []) == []


async def test_without_a_leader_nobody_knows_the_gangs(pair):
    _, follower = pair
    follower.leader = None
    answer = await follower.reader.get(f"{PREFIX}/gangs")
    assert (answer.status, (await answer.json())["Error"]) == (503, "no replica is known to lead")


async def test_a_list_that_takes_long_does_not_keep_kube_schedulers_calls_from_the_leader(
    pair, monkeypatch
):
    _, follower = pair
    monkeypatch.setattr(leader_proxy, "SERIAL_SECONDS", 1.0)
    never = asyncio.Event()

    async def hold(*_):
        await never.wait()

    monkeypatch.setattr(reading_verbs.Turns, "run", hold)
    assert (await follower.reader.get(f"{PREFIX}/gangs")).status == 503
    monkeypatch.undo()
    assert (await follower.post("filter", FILTER))[0] == 200


async def test_without_a_leader_deciding_calls_are_503_with_a_reason(pair):
    _, follower = pair
    follower.leader = None
    for verb, body in (("bind", BIND), ("filter", FILTER)):
        status, said = await follower.post(verb, body)
        assert (status, said["Error"]) == (503, "no replica is known to lead")


async def test_a_forwarded_call_is_never_forwarded_again(pair):
    leader, follower = pair
    leader.leading.decides = False
    leader.knows(follower)  # each believes that the other leads
    status, _ = await follower.post("bind", BIND)
    assert status == 503
    assert not leader.bench.kube.bindings
    assert not follower.bench.kube.bindings


async def test_a_leader_that_does_not_answer_is_not_asked_again_until_it_renews(pair, monkeypatch):
    leader, follower = pair
    monkeypatch.setattr(leader_proxy, "SERIAL_SECONDS", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts connections and never responds
        follower.leader = Record("x", "1", 6.0, f"127.0.0.1:{silent.getsockname()[1]}")
        assert (await follower.post("filter", FILTER))[0] == 503
        assert (await follower.post("filter", FILTER))[0] == 503
        silent.setblocking(False)
        silent.accept()[0].close()
        with pytest.raises(BlockingIOError):
            silent.accept()
    follower.knows(leader, version="2")
    assert (await follower.post("filter", FILTER))[0] == 200


async def test_a_filter_is_forwarded_while_more_binds_are_pending_than_connections(
    pair, monkeypatch
):
    leader, follower = pair
    monkeypatch.setattr(leader_proxy, "CONNECT_SECONDS", 20.0)  # many handshakes at once
    monkeypatch.setitem(leader_proxy.SECONDS, "bind", 60.0)
    monkeypatch.setattr(leader_proxy, "SERIAL_SECONDS", 20.0)
    go_on, inside, all_in_progress = asyncio.Event(), [], asyncio.Event()

    async def hold(args):
        inside.append(args)
        if len(inside) == leader_proxy.CONNECTIONS:
            all_in_progress.set()
        await go_on.wait()

    monkeypatch.setattr(leader.bench.binder, "bind", hold)
    many = range(leader_proxy.CONNECTIONS + 8)
    binds = [asyncio.create_task(follower.post("bind", BIND)) for _ in many]
    await all_in_progress.wait()
    try:
        status, _ = await follower.post("filter", FILTER)
    finally:
        go_on.set()
        await asyncio.gather(*binds)
    assert status == 200


async def test_a_server_without_the_leaders_certificate_receives_nothing(tmp_path, pair):
    _, follower = pair
    files = certificates.make((NAME, "other"), now=NOW, days=1)
    other = write(tmp_path / "other", "other", files)
    async with Replica(True).serve(other) as impostor:
        follower.knows(impostor)
        assert (await follower.post("bind", BIND))[0] == 503
        assert not impostor.bench.kube.bindings


async def call(session, leader, tls, path="bind"):
    context = client_contexts(tls).current()
    url = f"https://{leader.address}{PREFIX}/{path}"
    return await session.post(url, data=json.dumps(BIND), ssl=context, server_hostname=NAME)


async def test_only_replicas_get_in_where_replicas_are_answered(tmp_path, pair):
    leader, _ = pair
    files = certificates.make((NAME, "other"), now=NOW, days=1)
    stranger = write(tmp_path / "stranger", "other", files)
    mine = write(tmp_path / "mine")
    async with aiohttp.ClientSession() as session:
        for tls in (stranger, mine):  # of other authorities
            with pytest.raises(aiohttp.ClientError):
                await call(session, leader, tls)
    assert not leader.bench.kube.bindings


async def test_a_certificate_of_our_authority_with_another_name_is_rejected(tmp_path):
    files = certificates.make((NAME, "other"), now=NOW, days=1)
    tls = write(tmp_path / "ours", NAME, files)
    other = write(tmp_path / "other", "other", files)
    async with Replica(True).serve(tls) as leader, aiohttp.ClientSession() as session:
        for path in ("bind", "filter", "inspect"):
            answer = await call(session, leader, other, path)
            assert answer.status in {403, 405}
        assert not leader.bench.kube.bindings


def test_a_forwarded_bind_returns_before_kube_scheduler_hangs_up():
    assert READ_SECONDS + WRITE_SECONDS + READ_SECONDS < ANSWER_SECONDS
    assert ANSWER_SECONDS + 0.2 < leader_proxy.SECONDS["bind"] < 5 - 0.1
    assert leader_proxy.SERIAL_SECONDS < 5
