"""How the cluster and an extender are reached, and what is said where they are not."""

import asyncio

import msgspec
import pytest
from aiohttp import WSMsgType, web
from aiohttp.test_utils import TestServer

from gpushare.errors import ApiError, NotFound, SettingsError, TooLarge, Unreachable
from gpushare.kube.client import Kube
from gpusharectl.reach.extender import NoExtender, all_nodes, all_pods, extender
from gpusharectl.reach.options import Target
from gpusharectl.reach.port_forward import Forward
from gpusharectl.reach.rights import Lacking
from localcluster.wait import patient
from tests.integration.kube.apiserver import FrontDoor, kubeconfig, over_tls, status

pytestmark = pytest.mark.integration

TARGET = Target(None, None, "gpushare-system")


def pod(name, address, *, ready=True, deletion=None):
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    meta = {"name": name, "namespace": "gpushare-system", "deletionTimestamp": deletion}
    return {"metadata": meta, "status": {"podIP": address, "conditions": conditions}}


class Cluster:
    """An API server with pods, a Lease, and kubelets whose pods each say something else.

    ``answers`` by pod: the HTTP response, or what the kubelet says on the channel of errors.
    """

    def __init__(self, *pods, leader="", refused=()):
        self.pods, self.leader, self.refused = pods, leader, refused
        self.answers = {}
        self.forwarded = []
        self.app = web.Application()
        system = "/api/v1/namespaces/gpushare-system/pods"
        self.app.router.add_get(system, self._pods)
        self.app.router.add_get(f"{system}/{{name}}/portforward", self._forward)
        self.app.router.add_get(
            "/apis/coordination.k8s.io/v1/namespaces/gpushare-system/leases/{name}", self._lease
        )

    async def _pods(self, request):
        self.selector = request.query.get("labelSelector")
        if "pods" in self.refused:
            return web.json_response({"reason": "Forbidden"}, status=403)
        return web.json_response({"items": list(self.pods), "metadata": {}})

    async def _lease(self, _):
        annotations = {"gpushare.aliyun.com/address": f"{self.leader}:29767"}
        return web.json_response({"metadata": {"annotations": annotations}})

    async def _forward(self, request):
        name = request.match_info["name"]
        if "portforward" in self.refused:
            return web.json_response({"reason": "Forbidden"}, status=403)
        socket = web.WebSocketResponse(protocols=("v4.channel.k8s.io",))
        await socket.prepare(request)
        self.forwarded.append((name, request.query["ports"], request.headers["Authorization"]))
        for channel in (0, 1):
            await socket.send_bytes(bytes([channel]) + (29766).to_bytes(2, "little"))
        async for message in socket:
            if message.type is not WSMsgType.BINARY:
                break
            said = self.answers.get(name, f"I am {name}")
            if isinstance(said, bytes):
                await socket.send_bytes(b"\x01" + said)
                break
            body = said.encode()
            head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            for part in (head, body[:2], body[2:]):
                await socket.send_bytes(b"\x00" + part)
        await socket.close()
        return socket


async def asked(cluster, tmp_path, page="/page"):
    async with TestServer(cluster.app) as server:
        path = tmp_path / "kubeconfig"
        path.write_bytes(msgspec.json.encode(kubeconfig(str(server.make_url("")))))
        async with Kube.connect(str(path)) as kube, extender(TARGET, kube) as found:
            return await found.get(page)


async def test_the_extender_that_decides_is_asked_through_its_pod(tmp_path):
    cluster = Cluster(pod("a", "10.0.0.1"), pod("b", "10.0.0.2"), leader="10.0.0.2")
    assert await asked(cluster, tmp_path) == b"I am b"
    assert cluster.forwarded[0] == ("b", "29766", "Bearer secret")
    assert "gpushare-extender" in cluster.selector
    assert "gpushare-scheduler" in cluster.selector


async def test_one_that_is_not_ready_or_about_to_end_is_not_asked(tmp_path):
    cluster = Cluster(
        pod("a", "10.0.0.1", ready=False),
        pod("b", "10.0.0.2", deletion="2026-01-01T00:00:00Z"),
        pod("c", "10.0.0.3"),
        leader="10.0.0.1",
    )
    assert await asked(cluster, tmp_path) == b"I am c"
    with pytest.raises(NoExtender, match="is ready, of 1 extender"):
        await asked(Cluster(pod("a", "", ready=False)), tmp_path)
    with pytest.raises(NoExtender, match="--server"):
        await asked(Cluster(), tmp_path)


async def test_where_one_does_not_answer_another_is_asked(tmp_path):
    cluster = Cluster(pod("a", "10.0.0.1"), pod("b", "10.0.0.2"), leader="10.0.0.1")
    cluster.answers["a"] = b"dial tcp4 127.0.0.1:29766: connect: connection refused"
    assert await asked(cluster, tmp_path) == b"I am b"
    cluster.answers["b"] = b"the sandbox is gone"
    with pytest.raises(Unreachable, match=r"gpushare-system/a .*nothing listens"):
        await asked(cluster, tmp_path)


async def test_the_right_that_is_missing_is_named_with_the_command_that_shows_it(tmp_path):
    with pytest.raises(Lacking, match=r"auth can-i create pods/portforward -n gpushare-system"):
        await asked(Cluster(pod("a", ""), refused=("portforward",)), tmp_path)
    with pytest.raises(Lacking, match=r"auth can-i list pods -n gpushare-system"):
        await asked(Cluster(refused=("pods",)), tmp_path)
    door = FrontDoor()
    door.answers = [status(403, "Forbidden")]
    async with door.connect(tmp_path) as kube:
        with pytest.raises(Lacking, match=r"list nodes \(kubectl auth can-i list nodes\)"):
            await all_nodes(kube)
        with pytest.raises(Lacking, match=r"kubectl auth can-i list pods -A"):
            await all_pods(kube)
    door.answers = [status(401, "Unauthorized")]
    async with door.connect(tmp_path) as kube:
        with pytest.raises(
            ApiError,
            match=r"context x in .* does not accept the credentials of user u: log in again",
        ):
            await all_nodes(kube)


async def test_a_list_of_many_pages_is_whole_and_begins_again_where_a_page_has_expired(tmp_path):
    def page(*names, more=""):
        items = [{"metadata": {"name": name}} for name in names]
        body = msgspec.json.encode({"items": items, "metadata": {"continue": more}})

        async def answer(_):
            return web.Response(body=body, content_type="application/json")

        return answer

    door = FrontDoor()
    door.answers = [page("a", more="x"), status(410, "Expired"), page("b", more="y"), page("c")]
    async with door.connect(tmp_path) as kube:
        assert [each.name for each in await all_nodes(kube)] == ["b", "c"]


@pytest.fixture
async def reading():
    """An extender's reading listener, which says what token it was shown."""

    async def page(request):
        match request.path:
            case "/gpushare-scheduler/gone":
                return web.json_response({"Error": "no such pod"}, status=404)
            case "/gpushare-scheduler/closed":
                return web.json_response({"Error": "say who you are"}, status=401)
            case "/gpushare-scheduler/moved":
                return web.Response(status=302, headers={"Location": "/gpushare-scheduler/else"})
            case "/gpushare-scheduler/silent":
                await asyncio.Event().wait()
        return web.Response(text=request.headers.get("Authorization", "nobody"))

    app = web.Application()
    app.router.add_get("/{path:.*}", page)
    async with TestServer(app) as server:
        yield str(server.make_url("/gpushare-scheduler"))


async def by_url(url, tmp_path, page, *, authority=None, seconds=10.0):
    path = tmp_path / "kubeconfig"
    path.write_bytes(msgspec.json.encode(kubeconfig("http://127.0.0.1:9")))
    target = Target(None, None, "", url, authority)
    async with Kube.connect(str(path)) as kube, extender(target, kube) as found:
        return await found.get(page, seconds=seconds)


async def test_a_token_never_goes_in_the_clear(reading, tmp_path):
    assert await by_url(reading, tmp_path, "/gpushare-scheduler/inspect") == b"nobody"


async def test_the_extenders_own_words_are_shown_where_it_refuses(reading, tmp_path):
    with pytest.raises(NotFound, match="no such pod"):
        await by_url(reading, tmp_path, "/gpushare-scheduler/gone")
    with pytest.raises(ApiError, match=r"say who you are.*begins with https"):
        await by_url(reading, tmp_path, "/gpushare-scheduler/closed")
    with pytest.raises(ApiError, match=r"302"):
        await by_url(reading, tmp_path, "/gpushare-scheduler/moved")
    with pytest.raises(Unreachable, match=r"no answer within 0.1 s"):
        await by_url(reading, tmp_path, "/gpushare-scheduler/silent", seconds=0.1)
    with pytest.raises(Unreachable, match="does not answer"):
        await by_url("http://127.0.0.1:9", tmp_path, "/")


async def test_an_answer_that_is_too_long_is_not_kept(reading, tmp_path, monkeypatch):
    monkeypatch.setattr("gpusharectl.reach.extender.ANSWER_BYTES", 4)
    with pytest.raises(TooLarge, match=r"^extender at http://.*more than 4 bytes"):
        await by_url(reading, tmp_path, "/gpushare-scheduler/inspect")


async def test_an_authority_without_certificates_names_the_option_and_the_variable(tmp_path):
    with pytest.raises(SettingsError, match=r"^--server-ca \(GPUSHARE_SERVER_CA\): .* no usable"):
        await by_url("https://x", tmp_path, "/", authority=str(tmp_path / "none"))


async def test_an_extender_with_an_unknown_certificate_is_not_asked(tmp_path):
    async with over_tls(tmp_path) as port:
        with pytest.raises(Unreachable) as raised:
            await by_url(f"https://127.0.0.1:{port}", tmp_path, "/")
    assert str(raised.value) == (
        f"extender at https://127.0.0.1:{port} does not answer: its certificate is signed by an "
        "unknown authority; check --server-ca (GPUSHARE_SERVER_CA)"
    )


class _Held:
    """An API server that does not answer."""

    async def open_websocket(self, *_, **__):
        await asyncio.Event().wait()


async def test_a_connection_that_is_given_up_before_it_begins_is_closed(monkeypatch):
    accepted = asyncio.get_running_loop().create_future()
    serve = asyncio.start_unix_server

    def served(opened, path):
        def noted(reader, writer):
            accepted.set_result(None)  # who waits for it goes on before what is begun below
            opened(reader, writer)

        return serve(noted, path)

    monkeypatch.setattr(asyncio, "start_unix_server", served)
    async with Forward.to(_Held(), "namespace", "pod", 1) as forward:
        reader, writer = await asyncio.open_unix_connection(forward.socket)
        await accepted
    async with asyncio.timeout(patient(5)):
        assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()
