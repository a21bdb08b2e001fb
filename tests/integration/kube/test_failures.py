"""A server that cannot be used is an error of one sentence, with its context and what to do."""

import asyncio
import re
from base64 import b64encode
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace

import pytest
from aiohttp.test_utils import TestServer, unused_port

from gpushare.errors import ApiError, OutcomeUnknown, SettingsError, Unreachable
from gpushare.kube.client import Kube
from localcluster.wait import patient
from tests.fakes.certificates import certificate
from tests.integration.kube.apiserver import (
    FrontDoor,
    body,
    hang,
    over_tls,
    reset,
    status,
    write_kubeconfig,
)
from tests.integration.kube.apiserver import text as text_of
from tests.waiting import running

pytestmark = pytest.mark.integration

LIBRARY = re.compile(r"ssl:|Errno|Error\(|aiohttp|_ssl\.c|object at|Cannot connect|\[")


async def failure(folder, server, user=None, *, seconds=10.0, kind=ApiError, **cluster):
    """Return the text of the error that a request ends with, without the kubeconfig's folder."""
    path = write_kubeconfig(folder, server, user, **cluster)
    async with Kube.connect(path) as kube:
        with pytest.raises(kind) as raised:
            await kube.request("GET", "/api/v1/nodes", seconds=seconds)
    text = str(raised.value).replace(f"{folder}/", "")
    assert not LIBRARY.search(text), text
    return text


@asynccontextmanager
async def talking(said):
    """Yield the port of a server that says the same to everybody, once it was spoken to."""

    async def serve(reader, writer):
        await reader.read(1)
        writer.write(said)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


@asynccontextmanager
async def network(port, cut):
    """Yield a port that leads to ``port`` until ``cut`` is set, and what the client's end sets."""
    ended = asyncio.Event()

    async def carry(source, target):
        while data := await source.read(2**16):
            if not cut.is_set():
                target.write(data)

    async def serve(reader, writer):
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        answers = asyncio.create_task(carry(inner_reader, writer))
        with suppress(ConnectionResetError):
            await carry(reader, inner_writer)
        ended.set()
        answers.cancel()
        inner_writer.close()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1], ended


async def test_a_refused_connection_names_server_context_and_file(tmp_path):
    server = f"https://127.0.0.1:{unused_port()}"
    assert await failure(tmp_path, server, kind=Unreachable) == (
        f"cannot reach {server} (context x in kubeconfig): connection refused; check the address, "
        "and that the server runs"
    )


async def test_an_unknown_name_is_named(tmp_path):
    text = await failure(tmp_path, "https://kube.invalid:6443", kind=Unreachable)
    assert text == (
        "cannot reach https://kube.invalid:6443 (context x in kubeconfig): the name kube.invalid "
        "cannot be resolved; check the name, DNS and your VPN"
    )


async def test_an_unknown_authority_is_not_trusted(tmp_path):
    async with over_tls(tmp_path) as port:
        other = certificate(tmp_path, "other")
        for cluster in ({}, {"certificate-authority": str(other)}):
            text = await failure(tmp_path, f"https://127.0.0.1:{port}", kind=Unreachable, **cluster)
            assert text == (
                f"cannot reach https://127.0.0.1:{port} (context x in kubeconfig): its certificate "
                "is signed by an unknown authority; check certificate-authority in the kubeconfig"
            )


@pytest.mark.parametrize(
    ("made", "says"),
    [
        ({"days": -1}, "its certificate has expired; renew it, or correct the clock of this"),
        ({"days": 90}, "its certificate is not valid yet; correct the clock of this machine"),
        (
            {"address": "10.0.0.1"},
            "its certificate is not for 127.0.0.1; correct server or tls-server-name in the",
        ),
    ],
)
async def test_an_invalid_certificate_is_an_error(tmp_path, made, says):
    async with over_tls(tmp_path, **made) as port:
        trusted = {"certificate-authority": "authority.crt"}
        text = await failure(tmp_path, f"https://127.0.0.1:{port}", kind=Unreachable, **trusted)
    assert says in text


async def test_a_server_that_refuses_the_handshake_is_an_error(tmp_path):
    async with talking(b"\x15\x03\x03\x00\x02\x02\x28") as port:  # an alert of TLS 1.2
        text = await failure(tmp_path, f"https://127.0.0.1:{port}", kind=Unreachable)
    assert re.search(r"TLS failed \(.*handshake failure\); check the certificates$", text)


async def test_a_server_without_tls_is_an_error(tmp_path):
    door = FrontDoor()
    door.answers = [body({})]
    async with TestServer(door.app) as server:
        text = await failure(tmp_path, f"https://127.0.0.1:{server.port}", kind=Unreachable)
    assert text.endswith("it does not use TLS; check the port")


async def test_a_server_with_tls_that_is_asked_without_is_an_error(tmp_path):
    door = FrontDoor()
    door.answers = [text_of(b"Client sent an HTTP request to an HTTPS server.\n", 400)]
    async with TestServer(door.app) as server:
        url = f"http://127.0.0.1:{server.port}"
        text = await failure(tmp_path, url, kind=Unreachable)
    assert text == f"cannot reach {url} (context x in kubeconfig): it uses TLS; write https://"


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (hang, "no answer within 0.3 s; check the address, firewalls and your VPN"),
        (reset, "the connection was closed before the whole answer; try again"),
    ],
)
async def test_a_missing_answer_is_an_error_that_names_the_request(tmp_path, answer, says):
    door = FrontDoor()
    door.answers = [answer]
    async with TestServer(door.app) as server:
        url = f"http://127.0.0.1:{server.port}"
        text = await failure(tmp_path, url, seconds=0.3, kind=OutcomeUnknown)
    assert text == f"GET /api/v1/nodes: {url} (context x in kubeconfig): {says}"


async def test_a_request_that_is_given_up_ends_its_connection_at_once(tmp_path):
    asked = asyncio.Event()

    async def answer(request):
        asked.set()
        return await hang(request)

    async with over_tls(tmp_path, answer=answer) as port, network(port, asked) as (entry, ended):
        trusted = {"certificate-authority": "authority.crt"}
        path = write_kubeconfig(tmp_path, f"https://127.0.0.1:{entry}", **trusted)
        async with Kube.connect(path) as kube:
            async with running(kube.request("GET", "/api/v1/nodes")):
                await asked.wait()
            async with asyncio.timeout(patient(10)):
                await ended.wait()


async def test_what_does_not_speak_http_is_an_error(tmp_path):
    async with talking(b"SSH-2.0-OpenSSH_9.6\r\n") as port:
        text = await failure(tmp_path, f"http://127.0.0.1:{port}")
    assert text.endswith("the answer is not HTTP; check the address")


@pytest.mark.parametrize(
    ("user", "says"),
    [
        ("u", "does not accept the credentials of user u: log in again or renew them"),
        ("", "requires credentials, and the context has no user: add one"),
    ],
)
async def test_rejected_credentials_name_their_user(tmp_path, user, says):
    door = FrontDoor()
    door.answers = [status(401, "Unauthorized")]
    async with TestServer(door.app) as server:
        path = write_kubeconfig(tmp_path, str(server.make_url("")))
        text = (tmp_path / "kubeconfig").read_text().replace('"user":"u"', f'"user":"{user}"')
        (tmp_path / "kubeconfig").write_text(text)
        async with Kube.connect(path) as kube:
            with pytest.raises(ApiError) as raised:
                await kube.request("GET", "/api/v1/nodes")
        url = f"http://127.0.0.1:{server.port}"
    assert str(raised.value) == f"{url} (context x in {path}) {says}"


@pytest.fixture
async def proxy():
    """A proxy that answers every CONNECT with ``proxy.code`` and keeps the headers."""
    app = SimpleNamespace(code=403, seen="")

    async def answer(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        app.seen = head.decode()
        writer.write(f"HTTP/1.1 {app.code} No\r\nContent-Length: 0\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        app.port = server.sockets[0].getsockname()[1]
        yield app


async def test_a_proxys_refusal_names_the_proxy_and_no_password(tmp_path, proxy):
    url = f"http://me:t0ps3cret@127.0.0.1:{proxy.port}"
    text = await failure(tmp_path, "https://10.0.0.1:6443", kind=Unreachable, **{"proxy-url": url})
    assert text == (
        "cannot reach https://10.0.0.1:6443 (context x in kubeconfig) through the proxy "
        f"http://127.0.0.1:{proxy.port} (proxy-url in the kubeconfig): the proxy answers 403; if "
        "the server needs no proxy, add it to NO_PROXY"
    )
    shown = b64encode(b"me:t0ps3cret").decode()
    assert f"Proxy-Authorization: Basic {shown}" in proxy.seen
    assert "secret" not in proxy.seen.replace(shown, "")  # the user's token is not for it


async def test_a_proxy_that_requires_a_password_or_is_not_there_is_named(
    tmp_path, proxy, monkeypatch
):
    proxy.code = 407
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy.port}")
    text = await failure(tmp_path, "https://10.0.0.1:6443", kind=Unreachable)
    assert "(HTTPS_PROXY or HTTP_PROXY): the proxy requires a user and a password" in text
    port = unused_port()
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{port}")
    text = await failure(tmp_path, "https://10.0.0.1:6443", kind=Unreachable)
    assert f"through the proxy http://127.0.0.1:{port} (HTTPS_PROXY or HTTP_PROXY): " in text
    assert "connection refused" in text


@pytest.mark.parametrize("url", ["socks5://me:t0ps3cret@127.0.0.1:1", "http://:99999", "a b"])
async def test_a_proxy_that_is_not_one_of_http_is_an_error(tmp_path, monkeypatch, url):
    monkeypatch.setenv("https_proxy", url)
    path = write_kubeconfig(tmp_path, "https://10.0.0.1:6443")
    with pytest.raises(SettingsError, match="HTTPS_PROXY is not an HTTP proxy") as raised:
        async with Kube.connect(path):
            pass
    assert "t0ps3cret" not in str(raised.value)
