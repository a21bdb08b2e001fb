"""Listeners against misbehaving clients: real sockets, slow, large, invalid and too many."""

import asyncio
import os
import resource
import socket
import ssl
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress

import aiohttp
import pytest
from aiohttp import web
from prometheus_client import REGISTRY

from extender.routes import Routes, count_refused, serve
from extender.server.authorization import Authorizer
from extender.server.limits import (
    MAX_SCRAPES,
    MAX_USAGES,
    ConcurrencyLimit,
    limit_concurrency,
    respond,
)
from extender.server.tls import certificate_context, server_context
from extender.settings.configuration import Limits
from extender.settings.listeners import Address, Certificate, DecidingTls, Listen, Tls
from extender.settings.listeners import ReadingListener as Reading
from gpushare.errors import SettingsError
from gpushare.http_server import listeners, requests, tls_connections
from gpushare.http_server.handshakes import MAX_PER_UNTRUSTED, MAX_UNTRUSTED
from gpushare.http_server.listeners import Listener, serve_app
from localcluster.wait import patient
from tests.fakes.certificates import certificate
from tests.unit.extender.scripted import PREFIX
from tests.waiting import eventually

LARGE = 32 * 2**20


@pytest.fixture
def free_port(unused_tcp_port_factory):
    return unused_tcp_port_factory


@pytest.fixture
async def port(bench, free_port):
    """The port of a listener for two connections with short time limits."""
    routes = Routes(bench.cluster, bench.binder, list, limits=Limits(body_mib=1))
    listener = Listener("test", "127.0.0.1", free_port(), connections=2, idle_seconds=1.0)
    async with serve_app(listener, routes.app()):
        yield listener.port


class RawClient:
    """A connection on which a test sends any bytes."""

    def __init__(self, reader, writer):
        self._reader, self._writer = reader, writer

    def send(self, text, *more):
        self._writer.write(b"".join(each.encode() for each in (text, *more)))

    async def until_closed(self):
        """Return what the server sends until it closes the connection, within five seconds."""
        async with asyncio.timeout(patient(5)):
            received = b""
            with suppress(ConnectionError):
                received = await self._reader.read(-1)
            return received.decode()

    async def status(self):
        async with asyncio.timeout(patient(5)):
            return int((await self._reader.readline()).split()[1])


@asynccontextmanager
async def raw(port, source="127.0.0.1"):
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
    try:
        yield RawClient(reader, writer)
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


def post(*headers):
    return "\r\n".join([f"POST {PREFIX}/filter HTTP/1.1", "Host: x", *headers, "", ""])


async def test_callers_that_have_just_hung_up_take_no_place_from_the_next(port):
    loop = asyncio.get_running_loop()
    callers = [socket.create_connection(("127.0.0.1", port)) for _ in range(2)]
    for caller in callers:
        caller.setblocking(False)
        await loop.sock_sendall(caller, b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n")
        assert await loop.sock_recv(caller, 1000)
    for caller in callers:
        caller.close()
    # The listener sees their end and the next caller in one turn of its loop.
    with socket.create_connection(("127.0.0.1", port)) as after:
        after.setblocking(False)
        await loop.sock_sendall(after, post().encode())
        assert await loop.sock_recv(after, 1000)


@pytest.mark.parametrize("sent", ["", "POST /gp", "POST / HTTP/1.1\r\nHost: x\r\nX: "])
async def test_an_unfinished_request_head_ends_the_connection(port, sent):
    async with raw(port) as slow:
        slow.send(sent)
        assert await slow.until_closed() == ""


async def test_a_slowly_sent_request_head_ends_the_connection(port):
    async with raw(port) as slow:
        slow.send("POST / HTTP/1.1\r\n")

        async def trickle():
            while True:
                slow.send("X-A: b\r\n")
                await asyncio.sleep(0.05)

        trickling = asyncio.create_task(trickle())
        assert await slow.until_closed() == ""
        trickling.cancel()


@pytest.mark.parametrize(
    "headers", [["X: " + "a" * 9000], [f"X-{n}: b" for n in range(200)], ["no colon"]]
)
async def test_a_large_or_invalid_head_is_rejected_without_a_log_line(port, headers, caplog):
    async with raw(port) as invalid:
        invalid.send(post(*headers))
        assert " 400 " in (await invalid.until_closed()).splitlines()[0]
    assert caplog.text == ""


@pytest.mark.parametrize(
    "sent",
    [
        "GET / HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nxyz",
        "GET /nothing HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz",
        "GET /nothing HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        "FOO * HTTP/9.9\r\n\r\n",
        "\r\n\0\r\n\r\n",
    ],
)
async def test_invalid_http_logs_nothing(port, caplog, sent):
    async with raw(port) as invalid:
        invalid.send(sent)
        assert "500" not in (await invalid.until_closed()).partition("\r\n")[0]
    assert caplog.text == ""


async def test_a_body_with_a_too_large_content_length_is_rejected_before_it_arrives(port):
    async with raw(port) as large:
        large.send(post(f"Content-Length: {65 * 2**20}"))
        assert await large.status() == 413


async def test_a_chunked_body_beyond_the_limit_is_rejected(port):
    async with raw(port) as large:
        large.send(post("Transfer-Encoding: chunked"))
        for _ in range(20):
            large.send("10000\r\n", "x" * 0x10000, "\r\n")
        assert await large.status() == 413


@pytest.mark.parametrize(
    "body", ["zz\r\n", "-5\r\nabc", "5\r\nab\r\n0\r\n\r\n", "ffffffffffffffffff\r\n"]
)
async def test_invalid_chunks_are_rejected(port, body, monkeypatch):
    monkeypatch.setattr(requests, "BODY_SECONDS", 0.3)
    async with raw(port) as invalid:
        invalid.send(post("Transfer-Encoding: chunked"), body)
        assert await invalid.status() in {400, 408}


async def test_a_body_that_does_not_come_is_not_waited_for(port, monkeypatch):
    monkeypatch.setattr(requests, "BODY_SECONDS", 0.2)
    async with raw(port) as slow:
        slow.send(post("Content-Length: 100"), "{")
        assert await slow.status() == 408


async def test_a_connection_beyond_the_limit_is_closed_at_once(port):
    async with raw(port) as first, raw(port), raw(port) as third:
        assert await third.until_closed() == ""
        first.send("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert await first.status() == 200


async def test_an_address_in_use_is_named(port, routes):
    listener = Listener("test", "127.0.0.1", port, connections=2, idle_seconds=1)
    with pytest.raises(SettingsError, match=f"cannot listen on 127.0.0.1:{port}"):
        async with serve_app(listener, routes.app()):
            pass


@pytest.fixture
async def held(free_port):
    """Verbs that wait for an event, two at a time, and one with a large response."""
    limit, go = ConcurrencyLimit(Limits(filter=2, reading=1)), asyncio.Event()
    app = web.Application(middlewares=[respond(list, limit), limit_concurrency(limit)])

    async def wait(_):
        await go.wait()
        return web.Response()

    async def much(_):
        return web.Response(body=b"x" * LARGE)

    for verb in ("filter", "bind"):
        app.router.add_post(f"{PREFIX}/{verb}", wait, name=verb)
    app.router.add_get(f"{PREFIX}/inspect", much, name="inspect")
    listener = Listener("test", "127.0.0.1", free_port(), connections=50, idle_seconds=5)
    async with serve_app(listener, app):
        yield listener.port, go, limit


async def test_a_verb_that_has_no_room_is_refused_and_takes_none_of_anothers(held):
    port, go, _ = held
    url = f"http://127.0.0.1:{port}{PREFIX}"
    async with aiohttp.ClientSession() as session:
        calls = [asyncio.create_task(session.post(f"{url}/filter")) for _ in range(2)]
        rejected = None
        async with asyncio.timeout(patient(5)):
            while rejected is None:
                # Rejected once both are in progress; a third one can arrive before them.
                task = asyncio.create_task(session.post(f"{url}/filter"))
                done, _ = await asyncio.wait([task], timeout=0.2)
                if done:
                    rejected = await task
                else:
                    calls.append(task)
        assert rejected.status == 429
        assert "limits" in (await rejected.json())["Error"]
        assert rejected.headers["Retry-After"] == "1"
        calls.append(asyncio.create_task(session.post(f"{url}/bind")))
        go.set()
        answers = await asyncio.gather(*calls)
        assert answers[-1].status == 200
        assert (await session.post(f"{url}/filter")).status == 200


def test_limits_can_change_while_calls_are_in_progress():
    limit = ConcurrencyLimit(Limits(bind=2))
    acquired = [limit.acquire("bind"), limit.acquire("bind")]
    limit.limits = Limits(bind=1)
    assert limit.acquire("bind") is None
    for each in acquired:
        limit.release(each)
    assert limit.acquire("bind")
    assert limit.acquire("bind") is None
    limit.limits = Limits(bind=3)
    assert limit.acquire("bind")


def test_reading_verbs_share_one_limit_that_deciding_verbs_do_not_use():
    limit = ConcurrencyLimit(Limits(reading=2, filter=1, prioritize=1, preempt=1, bind=1))
    assert limit.acquire("inspect")
    assert limit.acquire("what_if")
    assert limit.acquire("explain") is limit.acquire("unknown") is None
    assert all(limit.acquire(verb) for verb in ("filter", "prioritize", "preempt", "bind"))
    assert all(limit.acquire("metrics") for _ in range(MAX_SCRAPES))
    assert limit.acquire("metrics") is None


@pytest.mark.parametrize("limit_of", ["SEND_SECONDS", "STALLED_SECONDS"])
async def test_a_receiver_that_takes_nothing_is_dropped_and_makes_room(held, monkeypatch, limit_of):
    port, _, limit = held
    monkeypatch.setattr(requests, limit_of, 0.3)
    async with raw(port) as slow:
        slow.send(f"GET {PREFIX}/inspect HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(patient(5)):
            while slot := limit.acquire("inspect"):  # until it is in progress
                limit.release(slot)
                await asyncio.sleep(0)
            while limit.acquire("inspect") is None:  # noqa: ASYNC110 - and until it is released
                await asyncio.sleep(0)
        assert len(await slow.until_closed()) < LARGE


@pytest.fixture
def pki(tmp_path):
    authority = certificate(tmp_path, "authority")
    for name in ("server", "kube-scheduler", "other"):
        certificate(tmp_path, name, signed_by=authority)
    certificate(tmp_path, "impostor")
    return tmp_path


@pytest.fixture
def mutual(pki):
    files = [str(pki / name) for name in ("server.crt", "server.key", "authority.crt")]
    return Tls(*files, ("kube-scheduler",))


@pytest.fixture
async def all_three(bench, routes, mutual, free_port):
    listen = Listen(
        Address("127.0.0.1", free_port()),
        DecidingTls("127.0.0.1", free_port(), mutual),
        Reading("127.0.0.1", free_port(), "review", Certificate(mutual.certificate, mutual.key)),
    )
    async with serve(listen, routes, Authorizer(None, bench.time)):
        yield listen


def trusting(pki, name=""):
    context = ssl.create_default_context(cafile=str(pki / "authority.crt"))
    if name:
        context.load_cert_chain(pki / f"{name}.crt", pki / f"{name}.key")
    return context


async def get(address, path, context=None):
    scheme = "https" if context else "http"
    url = f"{scheme}://127.0.0.1:{address.port}{path}"
    async with (
        aiohttp.ClientSession() as session,
        session.get(url, ssl=context or True) as response,
    ):
        return response.status, await response.text()


async def test_only_a_certificate_with_an_allowed_name_decides_from_other_machines(all_three, pki):
    listener = all_three.deciding_tls
    assert (await get(listener, f"{PREFIX}/inspect", trusting(pki, "kube-scheduler")))[0] == 200
    status, text = await get(listener, f"{PREFIX}/inspect", trusting(pki, "other"))
    assert (status, "other" in text) == (403, True)
    for name in ("", "impostor"):
        with pytest.raises(aiohttp.ClientError):
            await get(listener, f"{PREFIX}/inspect", trusting(pki, name))
    with pytest.raises(aiohttp.ClientError):
        await get(listener, f"{PREFIX}/inspect")


async def test_an_unfinished_handshake_counts_as_a_connection_until_it_ends(
    routes, mutual, pki, free_port
):
    listener = Listener("test", "127.0.0.1", free_port(), 2, 5.0, certificate_context(mutual))
    async with serve_app(listener, routes.app()):
        async with raw(listener.port), raw(listener.port), raw(listener.port) as third:
            assert await third.until_closed() == ""
        async with raw(listener.port) as invalid:
            invalid.send("not TLS")
            await invalid.until_closed()
        for _ in range(3):  # each releases its slot
            assert (await get(listener, "/healthz", trusting(pki)))[0] == 200


async def test_a_request_sent_with_the_end_of_the_handshake_is_answered(all_three, pki):
    port, context = all_three.reading.port, trusting(pki)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    theirs, ours = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(theirs, ours, server_hostname="127.0.0.1")
    async with asyncio.timeout(patient(5)):
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                writer.write(ours.read())
                theirs.write(await reader.read(2**16))
        tls.write(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
        writer.write(ours.read())  # the handshake's last part, and the request
        answer = b""
        while not answer:
            theirs.write(await reader.read(2**16))
            with suppress(ssl.SSLWantReadError):
                answer = tls.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 200 ")


async def test_the_reading_listener_has_no_deciding_verbs_and_public_health(all_three, pki):
    listener, context = all_three.reading, trusting(pki)
    for page in ("/healthz", "/readyz", "/version"):
        assert (await get(listener, page, context))[0] == 200
    for page in (f"{PREFIX}/inspect", f"{PREFIX}/filter", f"{PREFIX}/bind", "/metrics", "/other"):
        status, text = await get(listener, page, context)
        assert (status, "Bearer" in text) == (401, True)


async def test_a_renewed_certificate_is_used_without_a_restart(all_three, pki):
    listener, old = all_three.reading, trusting(pki)
    assert (await get(listener, "/healthz", old))[0] == 200
    certificate(pki, "server")  # self-signed from now on
    with pytest.raises(aiohttp.ClientError):
        await get(listener, "/healthz", old)
    renewed = ssl.create_default_context(cafile=str(pki / "server.crt"))
    assert (await get(listener, "/healthz", renewed))[0] == 200
    (pki / "server.key").write_text("half a fi")  # changes nothing until it is complete
    assert (await get(listener, "/healthz", renewed))[0] == 200


async def test_loopback_has_every_endpoint_without_tls(all_three):
    for page in ("/healthz", "/readyz", "/version", "/metrics", f"{PREFIX}/inspect"):
        assert (await get(all_three.deciding, page))[0] == 200


async def test_open_reading_needs_no_token_and_has_no_deciding_verbs(bench, routes, free_port):
    reading = Reading("127.0.0.1", free_port(), "open")
    listen = Listen(Address("127.0.0.1", free_port()), None, reading)
    async with serve(listen, routes, Authorizer(None, bench.time)):
        assert (await get(reading, f"{PREFIX}/inspect"))[0] == 200
        assert (await get(reading, f"{PREFIX}/filter"))[0] == 404


@pytest.fixture
async def strict(routes, mutual, free_port):
    """A listener that requires a certificate of the authority."""
    listener = Listener(
        "test", "127.0.0.1", free_port(), 1000, 5.0, server_context(mutual), refused=count_refused
    )
    async with serve_app(listener, routes.app()):
        yield listener


async def healthz(listener, pki, source):
    """Request /healthz from ``source`` with a certificate of the authority."""
    context = trusting(pki, "kube-scheduler")
    async with (
        aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(local_addr=(source, 0)),
            timeout=aiohttp.ClientTimeout(total=5),
        ) as session,
        session.get(f"https://127.0.0.1:{listener.port}/healthz", ssl=context) as answer,
    ):
        return answer.status


def connected(port, source):
    connection = socket.create_connection(("127.0.0.1", port), 5, source_address=(source, 0))
    connection.setblocking(False)
    return connection


def refused_at(listener):
    name = "gpushare_extender_refused_connections_total"
    return REGISTRY.get_sample_value(name, {"listener": listener.name}) or 0


def is_closed(connection):
    """Return whether the server has closed a connection without sending anything."""
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


async def test_unfinished_handshakes_do_not_block_other_addresses(strict, pki):
    async with AsyncExitStack() as stack:
        for _ in range(MAX_PER_UNTRUSTED):
            await stack.enter_async_context(raw(strict.port))
        async with raw(strict.port) as one_more:
            assert await one_more.until_closed() == ""
        assert await healthz(strict, pki, "127.0.0.2") == 200


async def test_unfinished_handshakes_from_many_addresses_do_not_block_others(strict, pki):
    before, addresses = refused_at(strict), MAX_UNTRUSTED // MAX_PER_UNTRUSTED + 1
    with ExitStack() as stack:
        # All arrive before the listener runs: it drops some whose handshake has not begun.
        half_open = [
            stack.enter_context(connected(strict.port, f"127.0.1.{1 + number % addresses}"))
            for number in range(MAX_PER_UNTRUSTED * addresses)
        ]
        assert await healthz(strict, pki, "127.0.0.2") == 200
        closed = [each for each in half_open if is_closed(each)]
    assert len(closed) == MAX_PER_UNTRUSTED + 1, "one for each that arrived after the last slot"
    assert refused_at(strict) - before == len(closed)


async def test_connections_are_accepted_again_once_files_may_be_opened(
    strict, pki, monkeypatch, caplog
):
    monkeypatch.setattr(listeners, "ACCEPT_AGAIN_SECONDS", 0.05)
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    with connected(strict.port, "127.0.0.2"):  # the listener has not run yet
        lowest = os.dup(0)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, usual[1]))
        try:
            await eventually(lambda: "cannot accept a connection" in caplog.text)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, usual)
        assert await healthz(strict, pki, "127.0.0.3") == 200


async def test_only_trusted_addresses_have_long_for_a_handshake(strict, pki, monkeypatch):
    monkeypatch.setattr(tls_connections, "UNTRUSTED_SECONDS", 0.2)
    assert await healthz(strict, pki, "127.0.0.2") == 200
    async with raw(strict.port, "127.0.0.2") as trusted, raw(strict.port) as untrusted:
        leaving = asyncio.create_task(trusted.until_closed())
        assert await untrusted.until_closed() == ""
        assert not leaving.done()
        leaving.cancel()


async def test_a_connection_without_a_first_request_is_closed_before_an_idle_one(
    routes, mutual, pki, free_port
):
    context = server_context(mutual)
    listener = Listener("test", "127.0.0.1", free_port(), 9, 60.0, context, first_seconds=0.2)
    own = trusting(pki, "kube-scheduler")
    async with serve_app(listener, routes.app()), asyncio.timeout(patient(5)):
        used, silent = [
            await asyncio.open_connection("127.0.0.1", listener.port, ssl=own) for _ in range(2)
        ]
        for _ in range(2):
            used[1].write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await used[0].readuntil(b"\r\n\r\nok\n")).startswith(b"HTTP/1.1 200 ")
            assert await silent[0].read() == b""
        for _, writer in (used, silent):
            writer.close()


async def test_the_former_port_is_served_unless_it_is_in_use(
    bench, routes, free_port, monkeypatch, caplog
):
    port, former = free_port(), free_port()
    monkeypatch.setattr("extender.settings.listeners.EXTENDER_PORT", port)
    listen = Listen(Address("127.0.0.1", port), former_port=former)
    async with serve(listen, routes, Authorizer(None, bench.time)):
        for each in (listen.deciding, listen.former):
            assert (await get(each, f"{PREFIX}/inspect"))[0] == 200
    with socket.create_server(("127.0.0.1", former)):
        async with serve(listen, routes, Authorizer(None, bench.time)):
            assert (await get(listen.deciding, f"{PREFIX}/inspect"))[0] == 200
    assert "former port not served" in caplog.text


def test_requests_for_real_use_leave_the_other_readers_their_limit():
    limit = ConcurrencyLimit(Limits())
    assert all(limit.acquire("usage") for _ in range(MAX_USAGES))
    assert limit.acquire("usage") is None
    assert all(limit.acquire("inspect") for _ in range(Limits().reading))
