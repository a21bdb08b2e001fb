"""A running program uses renewed tokens and certificates."""

import asyncio
import logging
import os
import ssl
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gpushare.errors import ApiError, SettingsError
from gpushare.kube.client import Kube
from gpushare.kube.connection import access
from localcluster.wait import patient
from tests.fakes.certificates import certificate
from tests.fakes.clock import FakeClock
from tests.integration.kube.apiserver import FrontDoor, write_kubeconfig
from tests.waiting import eventually

pytestmark = pytest.mark.integration

EXEC = "client.authentication.k8s.io/v1"
SAY = """#!/bin/sh
echo >> {folder}/runs
printf '{{"apiVersion": "{api}", "kind": "ExecCredential", "status": {{"token": "%s"}}}}' \
    "$(cat {folder}/token)"
"""


class Guarded(FrontDoor):
    """Accepts requests with the current token."""

    token = "first"

    def __init__(self) -> None:
        super().__init__()
        self.answers = [self._checked]

    async def _checked(self, request: web.Request) -> web.Response:
        shown = request.headers.get("Authorization", "").split(" ")[-1]
        code = 200 if shown == self.token else 401
        return web.json_response({"metadata": {"name": "a"}, "code": code}, status=code)


@pytest.fixture
def clock():
    return FakeClock(0.0)


@asynccontextmanager
async def connected(folder, clock, **user):
    door = Guarded()
    async with TestServer(door.app) as server:
        path = write_kubeconfig(folder, str(server.make_url("")), user)
        async with asyncio.timeout(patient(20)), Kube.connect(path, clock) as kube:
            yield door, kube


def program(folder, text=SAY):
    path = folder / "say"
    path.write_text(text.format(folder=folder, api=EXEC))
    path.chmod(0o755)
    return {"command": str(path), "apiVersion": EXEC}


async def test_the_pods_own_token_is_read_again_each_minute(monkeypatch, tmp_path, clock):
    token = tmp_path / "token"
    token.write_text("first\n")
    certificate(tmp_path, "ca")
    monkeypatch.setattr(access, "SERVICE_ACCOUNT", tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")
    async with asyncio.timeout(patient(20)), Kube.connect(clock=clock) as kube:
        token.write_text("second\n")
        assert kube.bearer() == "Bearer first"
        clock.now = 61.0
        await eventually(lambda: kube.bearer() == "Bearer second")


async def test_a_kubeconfigs_token_file_is_read_again_each_minute(tmp_path, clock):
    token = tmp_path / "token"
    token.write_text("first")
    async with connected(tmp_path, clock, tokenFile=str(token)) as (_, kube):
        token.write_text("second")
        assert kube.bearer() == "Bearer first"
        clock.now = 61.0
        await eventually(lambda: kube.bearer() == "Bearer second")


@pytest.mark.parametrize("kind", ["file", "program"])
async def test_after_a_401_the_request_is_repeated_with_a_new_token(tmp_path, clock, kind):
    (tmp_path / "token").write_text("first")
    users = {"file": {"tokenFile": str(tmp_path / "token")}, "program": {"exec": program(tmp_path)}}
    async with connected(tmp_path, clock, **users[kind]) as (door, kube):
        await kube.get_pod("default", "a")
        clock.now = 15.0
        door.token = "second"
        (tmp_path / "token").write_text("second")
        await asyncio.gather(*(kube.get_pod("default", "a") for _ in range(5)))
    if kind == "program":
        assert (tmp_path / "runs").read_text() == "\n\n"  # once at the start, once for all five


async def test_after_a_401_the_websocket_is_opened_with_a_new_token(tmp_path, clock):
    (tmp_path / "token").write_text("first")

    async def accept(request: web.Request) -> web.StreamResponse:
        if (await door._checked(request)).status == 401:
            return web.Response(status=401)
        made = web.WebSocketResponse(protocols=["p"])
        await made.prepare(request)
        await made.close()
        return made

    async with connected(tmp_path, clock, tokenFile=str(tmp_path / "token")) as (door, kube):
        door.answers = [accept]
        clock.now = 15.0
        door.token = "second"
        with pytest.raises(ApiError, match="does not accept the credentials"):
            await kube.open_websocket("/exec", query=[], protocol="p")
        (tmp_path / "token").write_text("second")
        clock.now = 30.0
        assert (await kube.open_websocket("/exec", query=[], protocol="p")).protocol == "p"


async def test_repeated_401s_are_errors_and_do_not_run_the_plugin_each_time(tmp_path, clock):
    (tmp_path / "token").write_text("first")
    async with connected(tmp_path, clock, exec=program(tmp_path)) as (door, kube):
        clock.now = 3600.0  # time is no reason to run it again
        await kube.get_pod("default", "a")
        door.token = "another"
        for _ in range(5):
            with pytest.raises(ApiError) as raised:
                await kube.get_pod("default", "a")
            assert raised.value.code == 401
    assert (tmp_path / "runs").read_text() == "\n\n"


async def test_if_a_token_file_cannot_be_read_the_last_token_stays_in_use(tmp_path, clock, caplog):
    token = tmp_path / "token"
    token.write_text("first")
    async with connected(tmp_path, clock, tokenFile=str(token)) as (_, kube):
        for seconds, break_ in ((61.0, lambda: token.write_text("")), (122.0, token.unlink)):
            caplog.clear()
            break_()
            clock.now = seconds
            await kube.get_pod("default", "a")
            await eventually(lambda: "credentials not read again" in caplog.text)
        os.mkfifo(token)
        clock.now = 190.0
        for _ in range(3):
            await kube.get_pod("default", "a")


async def test_a_renewed_client_certificate_is_used_without_a_restart(tmp_path, clock):
    authority = certificate(tmp_path, "authority")
    certificate(tmp_path, "server", signed_by=authority)
    certificate(tmp_path, "client", signed_by=authority)
    shown = []

    async def answer(request: web.Request) -> web.Response:
        shown.append(request.get_extra_info("peercert")["serialNumber"])
        return web.json_response({"metadata": {"name": "a"}})

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    server = TestServer(app, scheme="https")
    await server.start_server(ssl=context)
    files = {"client-certificate": "client.crt", "client-key": "client.key"}
    trusted = {"certificate-authority": str(authority)}
    path = write_kubeconfig(tmp_path, f"https://127.0.0.1:{server.port}", files, **trusted)
    try:
        async with asyncio.timeout(patient(20)), Kube.connect(path, clock) as kube:
            await kube.get_pod("default", "a")
            certificate(tmp_path, "client", signed_by=authority)
            clock.now = 61.0
            while len(set(shown)) < 2:
                await kube.get_pod("default", "a")
            (tmp_path / "client.key").write_text("half a fi")  # changes nothing until it is whole
            clock.now = 122.0
            await kube.get_pod("default", "a")
    finally:
        await server.close()
    assert len(set(shown)) == 2


async def test_a_credential_plugin_that_hangs_is_killed(tmp_path, clock, monkeypatch, caplog):
    (tmp_path / "token").write_text("first")
    monkeypatch.setattr("gpushare.kube.connection.configuration._AGAIN_SECONDS", 0.2)
    async with connected(tmp_path, clock, exec=program(tmp_path)) as (door, kube):
        program(tmp_path, "#!/bin/sh\nexec sleep 1000\n")
        clock.now = 15.0
        door.token = "second"
        with pytest.raises(ApiError):
            await kube.get_pod("default", "a")
    [told] = [r for r in caplog.records if r.message.startswith("credentials not read again")]
    assert "within 0.2 s" in told.why


async def test_debug_logs_do_not_prevent_the_use_of_a_kubeconfig(tmp_path, clock, caplog):
    caplog.set_level(logging.DEBUG)
    async with connected(tmp_path, clock, token="first") as (_, kube):  # noqa: S106 - opens nothing
        await kube.get_pod("default", "a")


@pytest.mark.parametrize(
    ("user", "cluster", "says"),
    [
        (
            {"client-certificate": "a.crt", "client-key": "b.key"},
            {},
            "context x in {}/kubeconfig: client-certificate and client-key cannot be used for",
        ),
        (
            {"client-certificate": "bad", "client-key": "bad"},
            {},
            "context x in {}/kubeconfig: client-certificate and client-key cannot be used for",
        ),
        (
            {},
            {"certificate-authority": "bad"},
            "context x in {}/kubeconfig: certificate-authority cannot be used for",
        ),
        ({}, {"certificate-authority": "empty"}, "{}/empty is empty: write it again"),
        ({"tokenFile": "empty"}, {}, "{}/empty is empty: write it again"),
    ],
)
async def test_unusable_files_are_an_error_at_the_start(tmp_path, clock, user, cluster, says):
    certificate(tmp_path, "a")
    certificate(tmp_path, "b")
    (tmp_path / "bad").write_text("no PEM")
    (tmp_path / "empty").write_text("\n")
    path = write_kubeconfig(tmp_path, "https://127.0.0.1:1", user, **cluster)
    with pytest.raises(SettingsError) as raised:
        async with Kube.connect(path, clock):
            pass
    assert str(raised.value).startswith(says.format(tmp_path))
