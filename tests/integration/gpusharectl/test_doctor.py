"""The doctor against answers that a real cluster does not give: nothing of them ends it."""

import datetime as dt
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from gpushare.errors import SettingsError, TooLarge, Unreachable
from gpushare.kube.connection.access import Certificates
from gpusharectl.doctor import over_tls
from gpusharectl.doctor.checks.findings import Severity, examine
from gpusharectl.doctor.command import CHECKS
from gpusharectl.doctor.facts.cluster import Facts, Unknown, Webhook
from gpusharectl.doctor.facts.seen import ConfigMapSource, SeenVolume
from gpusharectl.doctor.gather import gather
from gpusharectl.reach.options import Target
from localcluster.wait import patient
from tests.fakes.certificates import certificate as make
from tests.integration.kube.apiserver import FrontDoor
from tests.unit.gpusharectl.doctor.clusters import node, own

pytestmark = pytest.mark.integration

ADMISSION = "/apis/admissionregistration.k8s.io/v1"
NOW = dt.datetime(2026, 6, 1, tzinfo=dt.UTC)
LISTS = {
    "/api/v1/nodes": [node("n1")],
    "/api/v1/pods": [own("gpushare-deviceplugin", "n1"), own("gpushare-extender", "n1")],
}


async def facts(
    tmp_path: Path, answer: web.Response | Exception, *, pages=None, pods=None, **more
) -> Facts:
    """What is gathered where nodes and pods are listed and all else is answered like this.

    ``pages`` are answers by path, ``pods`` those that are listed.
    """
    door = FrontDoor()
    lists = LISTS | ({} if pods is None else {"/api/v1/pods": pods})

    async def by_path(request: web.Request) -> web.Response:
        if request.path in lists:
            page = {"items": lists[request.path], "metadata": {}}
            return web.Response(body=msgspec.json.encode(page))
        if request.path in (pages or {}):
            return web.json_response(pages[request.path])
        return web.Response(status=answer.status, body=answer.body)

    door.answers = [by_path]
    target = Target(None, None, "gpushare-system")
    async with door.connect(tmp_path) as kube:
        found = {"scheduler_url": None, **more}
        return await gather(target, kube, version="0.1.0", now=NOW, **found)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b"<html>login</html>"),
        (200, b"[]"),
        (200, b"{}"),
        (200, b'{"items": [7], "spec": 1, "status": [], "metadata": {}, "data": "x"}'),
        (200, b'{"version": 3, "gitVersion": null}'),
        (200, b"\xff\xfe"),
        (200, b""),
        (403, b'{"message": "no", "reason": "Forbidden"}'),
        (404, b"not here"),
        (500, b"oops"),
    ],
)
async def test_an_answer_of_another_form_is_told_and_ends_nothing(tmp_path, status, body):
    found = await facts(tmp_path, web.Response(status=status, body=body))
    results = examine(found, CHECKS)
    severities = {each.kind.severity for result in results for each in result.findings}
    assert severities - {Severity.PROBLEM, Severity.WARNING} <= {Severity.UNCHECKED}
    assert any(result.findings for result in results)


async def test_a_lease_that_lasts_for_years_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr("gpusharectl.doctor.api.LEASE_SECONDS", 0)
    lease = {"metadata": {"resourceVersion": "7"}, "spec": {"leaseDurationSeconds": 10**9}}
    found = await facts(tmp_path, web.json_response(lease))
    assert found.election == Unknown("it did not change within 0 s, and may last 1000000000 s")


async def test_of_the_extenders_secret_only_the_authority_is_kept(tmp_path):
    hooks = [{"clientConfig": {"caBundle": "b2xk"}}, {"clientConfig": {}}]
    secret = {"ca.crt": "bmV3", "tls.key": "c2VjcmV0"}
    found = await facts(tmp_path, web.json_response({"webhooks": hooks, "data": secret}))
    assert not isinstance(found.webhooks, Unknown)
    assert set(found.webhooks) == {"gpushare-scheduler-name", "gpushare-gates"}
    assert set(found.webhooks.values()) == {Webhook(trusts=b"old\n", authority=b"new")}


async def test_what_gates_pods_and_the_settings_of_the_extender_are_read(tmp_path):
    pages = {
        "/api/v1/namespaces": {"items": [{"metadata": {"name": "team"}}]},
        f"{ADMISSION}beta1/mutatingadmissionpolicybindings/gpushare-gates": {
            "metadata": {"name": "gpushare-gates"}
        },
        "/api/v1/namespaces/gpushare-system/configmaps/c": {
            "data": {
                "extender.yaml": "gates: off\npreemption: {enabled: true}\npolicy: {candidates: 0}"
                "\nschedulerNames: [mine]"
            }
        },
    }
    volume = SeenVolume(name="configuration", config_map=ConfigMapSource("c"))
    extender = own("gpushare-extender", "n1")
    spec = msgspec.structs.replace(extender.spec, volumes=(volume,))
    pods = [msgspec.structs.replace(extender, spec=spec)]
    found = await facts(tmp_path, web.Response(status=404), pages=pages, pods=pods)
    assert found.queues == {"team"}
    assert found.gating == {"mutatingadmissionpolicybindings"}
    assert found.gates is False
    assert found.preempts is True
    assert found.placement == {"candidates": 0}
    assert found.scheduler_names == {"mine"}


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:10259", "kube-scheduler", "https://", "https://[::1", "https://h:x"]
)
async def test_a_url_that_cannot_be_used_is_the_users_to_hear(tmp_path, url):
    with pytest.raises(SettingsError, match="--scheduler-url"):
        await facts(tmp_path, web.Response(status=404), scheduler_url=url)


@contextmanager
def listener(folder: Path, answer: bytes) -> Iterator[Path]:
    """A listener with TLS on a Unix socket, which says ``answer`` to whoever comes."""
    path = make(folder, "scheduler")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path, path.with_suffix(".key"))
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(folder / "socket"))
        door.listen()

        def serve() -> None:
            connection, _ = door.accept()
            with connection, context.wrap_socket(connection, server_side=True) as wrapped:
                wrapped.settimeout(patient(5))
                wrapped.recv(4096)
                wrapped.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield folder / "socket"
        thread.join()


def own_certificate(folder: Path) -> Certificates:
    path = make(folder, "me")
    key = path.with_suffix(".key").read_bytes()
    return Certificates(certificate=path.read_bytes(), key=key)


def test_a_page_is_asked_for_over_a_unix_socket(tmp_path):
    answer = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno"
    with listener(tmp_path, answer) as path:
        assert over_tls.page(path, "/configz", own_certificate(tmp_path)) == (403, b"no")


def test_a_page_that_is_too_long_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(over_tls, "MOST_BYTES", 1)
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
    with listener(tmp_path, answer) as path, pytest.raises(TooLarge, match="more than 1 bytes"):
        over_tls.page(path, "/configz", own_certificate(tmp_path))


@pytest.mark.parametrize("answer", [b"\r\n\r\n", b"SSH-2.0\r\n"])
def test_what_is_no_page_is_an_error(tmp_path, answer):
    with listener(tmp_path, answer) as path, pytest.raises(Unreachable, match="/configz"):
        over_tls.page(path, "/configz", own_certificate(tmp_path))


def test_where_nobody_listens_is_an_error(tmp_path):
    with pytest.raises(Unreachable):
        over_tls.page(tmp_path / "nobody", "/configz", own_certificate(tmp_path))
