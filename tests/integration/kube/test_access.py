"""A kubeconfig's certificates and credentials are used as kubectl uses them."""

import os
import subprocess
import sys
from base64 import b64encode
from contextlib import suppress

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer, unused_port

from gpushare.errors import ApiError, SettingsError, Unreachable
from gpushare.kube.client import Kube
from gpushare.kube.connection import access
from localcluster.wait import patient
from tests.fakes.certificates import certificate
from tests.integration.kube.apiserver import over_tls, write_kubeconfig

pytestmark = pytest.mark.integration

EXEC = "client.authentication.k8s.io/v1"


def data(path):
    return b64encode(path.read_bytes()).decode()


async def answered(folder, port, user=None, **cluster):
    path = write_kubeconfig(folder, f"https://127.0.0.1:{port}", user, **cluster)
    async with Kube.connect(path) as kube:
        return await kube.request("GET", "/version")


@pytest.mark.parametrize("origin", ["files", "data", "exec"])
async def test_both_sides_show_their_certificates(tmp_path, origin):
    users = certificate(tmp_path, "users")
    mine = certificate(tmp_path, "me", signed_by=users)
    key = mine.with_suffix(".key")
    async with over_tls(tmp_path, users=users) as port:
        authority = tmp_path / "authority.crt"
        cluster = {"certificate-authority-data": data(authority)}
        match origin:
            case "files":
                user = {"client-certificate": "me.crt", "client-key": "me.key"}
                cluster = {"certificate-authority": "authority.crt"}
            case "data":
                user = {"client-certificate-data": data(mine), "client-key-data": data(key)}
                user["client-certificate"] = "/nonexistent"  # the data takes precedence
            case _:
                found = {
                    "clientCertificateData": mine.read_text(),
                    "clientKeyData": key.read_text(),
                }
                printed = {"apiVersion": EXEC, "kind": "ExecCredential", "status": found}
                (tmp_path / "printed").write_bytes(msgspec.json.encode(printed))
                args = [str(tmp_path / "printed")]
                user = {"exec": {"command": "cat", "args": args, "apiVersion": EXEC}}
        assert await answered(tmp_path, port, user, **cluster) == b"{}"


async def test_a_server_is_verified_by_its_tls_server_name_or_not_at_all(tmp_path):
    async with over_tls(tmp_path, address="10.0.0.1") as port:
        trusted = {"certificate-authority": "authority.crt"}
        with pytest.raises(Unreachable, match="its certificate is not for"):
            await answered(tmp_path, port, **trusted)
        named = await answered(tmp_path, port, **trusted, **{"tls-server-name": "10.0.0.1"})
        unverified = await answered(tmp_path, port, **{"insecure-skip-tls-verify": True})
    assert named == unverified == b"{}"


@pytest.mark.parametrize(
    ("user", "header"),
    [
        ({"username": "u", "password": "p"}, "Basic dTpw"),
        ({"token": "t", "username": "u", "password": "p"}, "Bearer t"),
        ({"token": "t", "tokenFile": "file"}, "Bearer of-file"),
        ({"client-certificate": "not-read-without-tls", "client-key": "not-read"}, ""),
    ],
)
async def test_credentials_are_those_that_kubectl_sends(tmp_path, user, header):
    (tmp_path / "file").write_text("of-file\n")
    async with Kube.connect(write_kubeconfig(tmp_path, "http://127.0.0.1:1", user)) as kube:
        assert kube.bearer() == header


@pytest.mark.parametrize("server", ["http://10.0.0.1:8080", "http://kube.invalid"])
async def test_credentials_are_neither_read_nor_sent_in_the_clear(tmp_path, server):
    program = {"command": "touch", "args": [str(tmp_path / "ran")], "apiVersion": EXEC}
    for user in ({"token": "t"}, {"username": "u", "password": "p"}, {"exec": program}):
        async with Kube.connect(write_kubeconfig(tmp_path, server, user)) as kube:
            assert kube.bearer() == ""
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("server", ["http://localhost:1", "http://[::1]:1", "https://10.0.0.1"])
async def test_credentials_are_sent_by_tls_and_within_the_machine(tmp_path, server):
    async with Kube.connect(write_kubeconfig(tmp_path, server, {"token": "t"})) as kube:
        assert kube.bearer() == "Bearer t"


@pytest.mark.parametrize(
    ("server", "excepted", "is_used"),
    [
        ("https://10.1.2.3:6443", "", True),
        ("https://10.1.2.3:6443", "10.0.0.0/8", False),
        ("https://10.1.2.3:6443", "192.168.0.0/16, 10.1.2.3", False),
        ("https://10.1.2.3:6443", "10.1.2.3:6443", False),
        ("https://10.1.2.3:6443", "10.1.2.3:443,kube,fd00::/8", True),
        ("https://[fd00::1]:6443", "[fd00::1]", False),
        ("https://[fd00::1]:6443", "[fd00::1]:6443", False),
        ("https://[fd00::1]:6443", "[fd00::1]:443", True),
        ("https://[fd00::1]:6443", "fd00::/8", False),
        ("https://[fd00::1]:6443", "*", False),
        ("https://[fd00::1]:6443", "10.0.0.0/8", True),
        ("https://kube.invalid", ".invalid", False),
        ("https://kube.invalid", "10.0.0.0/8", True),
        ("https://localhost:6443", "", False),
        ("https://127.0.0.2:6443", "", False),
        ("https://[::1]:6443", "", False),
    ],
)
def test_no_proxy_has_the_meaning_that_it_has_for_kubectl(monkeypatch, server, excepted, is_used):
    monkeypatch.setenv("https_proxy", "proxy.invalid:3128")  # without a scheme: http
    monkeypatch.setenv("no_proxy", excepted)
    found = access.proxy_of(access.Access(server))
    assert found == ("http://proxy.invalid:3128" if is_used else None)


async def test_a_user_who_acts_as_another_does_so_in_every_request(tmp_path):
    seen = []

    async def answer(request):
        seen.append({k: request.headers.getall(k) for k in request.headers if "mperson" in k})
        return web.json_response({})

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    user = {"as": "jo", "as-uid": "7", "as-groups": ["a", "b"], "as-user-extra": {"x/y": ["z"]}}
    async with TestServer(app) as server:
        path = write_kubeconfig(tmp_path, str(server.make_url("")), {"token": "t", **user})
        async with Kube.connect(path) as kube:
            await kube.request("GET", "/version")
            with suppress(ApiError):
                await kube.open_websocket("/exec", query=[], protocol="v4.channel.k8s.io")
            assert kube.is_impersonating
    sent = {
        "Impersonate-User": ["jo"],
        "Impersonate-Uid": ["7"],
        "Impersonate-Group": ["a", "b"],
        "Impersonate-Extra-x%2Fy": ["z"],
    }
    assert seen == [sent, sent]


async def test_a_credential_plugin_learns_the_cluster_if_it_wants_to(tmp_path):
    text = f'echo "$KUBERNETES_EXEC_INFO" > {tmp_path}/told; echo "$0"'
    said = {"apiVersion": EXEC, "kind": "ExecCredential", "status": {"token": "t"}}
    args = ["-c", text, msgspec.json.encode(said).decode()]
    program = {"command": "sh", "args": args, "apiVersion": EXEC, "provideClusterInfo": True}
    shared = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "a"}}
    authority = certificate(tmp_path, "authority")
    cluster = {"certificate-authority": str(authority), "extensions": [shared]}
    path = write_kubeconfig(tmp_path, "https://127.0.0.1:1", {"exec": program}, **cluster)
    async with Kube.connect(path) as kube:
        assert kube.bearer() == "Bearer t"
    told = msgspec.json.decode((tmp_path / "told").read_bytes())
    assert told["spec"]["cluster"] == {
        "server": "https://127.0.0.1:1",
        "certificate-authority-data": data(authority),
        "config": {"audience": "a"},
    }


def test_a_credential_plugin_can_talk_to_the_user(tmp_path):
    said = {"apiVersion": EXEC, "kind": "ExecCredential", "status": {"token": "t"}}
    text = f"echo open https://login >&2; read code; echo '{msgspec.json.encode(said).decode()}'"
    user = {"exec": {"command": "sh", "args": ["-c", text], "apiVersion": EXEC}}
    path = write_kubeconfig(tmp_path, f"http://127.0.0.1:{unused_port()}", user)
    ours, theirs = os.openpty()
    argv = [sys.executable, "-m", "gpusharectl", "top", "--kubeconfig", path]
    with subprocess.Popen(argv, stdin=theirs, stderr=theirs, stdout=subprocess.DEVNULL) as program:
        os.close(theirs)
        assert b"open https://login" in os.read(ours, 4096)
        os.write(ours, b"code\n")
        assert program.wait(timeout=patient(60)) == 3  # the API server is not there
        os.close(ours)


@pytest.mark.parametrize(
    ("mode", "is_completing", "is_asked"),
    [("IfAvailable", False, True), ("Never", False, False), ("IfAvailable", True, False)],
)
def test_a_credential_plugin_asks_only_where_it_may(tmp_path, mode, is_completing, is_asked):
    said = {"apiVersion": EXEC, "kind": "ExecCredential", "status": {"token": "t"}}
    text = f"test -t 0 && touch asked; touch ran; echo '{msgspec.json.encode(said).decode()}'"
    args = ["-c", f"cd {tmp_path}; {text}"]
    program = {"command": "sh", "args": args, "apiVersion": EXEC, "interactiveMode": mode}
    server = f"http://127.0.0.1:{unused_port()}"
    path = write_kubeconfig(tmp_path, server, {"exec": program})
    words = f"gpushare inspect --kubeconfig {path} "
    completing = {
        "_GPUSHARE_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split())),
    }
    argv = [sys.executable, "-m", "gpusharectl"]
    argv += [] if is_completing else ["top", "--kubeconfig", path]
    env = {**os.environ, **(completing if is_completing else {})}
    ours, theirs = os.openpty()
    subprocess.run(argv, stdin=theirs, capture_output=True, env=env, check=False)
    os.close(theirs)
    os.close(ours)
    assert (tmp_path / "ran").exists()
    assert (tmp_path / "asked").exists() == is_asked


async def test_a_plugin_that_must_ask_needs_a_terminal(tmp_path):
    program = {"command": "true", "apiVersion": EXEC, "interactiveMode": "Always"}
    path = write_kubeconfig(tmp_path, "https://127.0.0.1:1", {"exec": program})
    with pytest.raises(SettingsError, match="nobody can answer: use a terminal"):
        async with Kube.connect(path, plugin_seconds=1.0):
            pass


def test_a_pods_api_server_may_have_an_ipv6_address(tmp_path, monkeypatch):
    (tmp_path / "token").write_text("t")
    (tmp_path / "ca.crt").write_text("c")
    monkeypatch.setattr(access, "SERVICE_ACCOUNT", tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    assert access.of_pod().server == "https://[fd00::1]:443"
