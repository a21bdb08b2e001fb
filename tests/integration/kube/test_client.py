"""Every response of the API server, and every failure to get one, is the right error."""

import asyncio
import sys
import tracemalloc
from contextlib import nullcontext, suppress

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from extender.binding.fenced_writer import Writer
from gpushare.clock import SystemClock
from gpushare.errors import (
    ApiError,
    Conflict,
    Gone,
    NotFound,
    NotLeading,
    OutcomeUnknown,
    Replaced,
    TooLarge,
    Unreachable,
)
from gpushare.kube import client
from gpushare.kube.client import Kube
from gpushare.kube.paths import pods
from gpushare.objects.model import PodCondition
from localcluster.run import run
from tests.builders import pod
from tests.integration.kube.apiserver import (
    FrontDoor,
    body,
    hang,
    reset,
    status,
    text,
    write_kubeconfig,
)  # fmt: skip

pytestmark = pytest.mark.integration


@pytest.fixture
def door() -> FrontDoor:
    return FrontDoor()


async def test_a_binding_is_one_request_with_uid_annotations_and_time_limit(door, tmp_path):
    door.answers = [status(201, "Created")]
    async with door.connect(tmp_path) as kube:
        await kube.bind_pod(pod("a", 8), "n1", {"key": "value"}, seconds=2)
    [(method, path, query, sent)] = door.asked
    assert (method, path) == ("POST", "/api/v1/namespaces/default/pods/a/binding")
    assert query == {"timeout": "2000ms"}
    binding = msgspec.json.decode(sent)
    assert binding["metadata"]["uid"] == "uid-a"
    assert binding["metadata"]["annotations"] == {"key": "value"}


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (status(404, "NotFound"), NotFound),
        (status(409, "Conflict"), Conflict),
        (status(410, "Expired"), Gone),
        (status(403, "Forbidden"), ApiError),
        (status(429, "TooManyRequests"), ApiError),
        (status(500, "InternalError"), OutcomeUnknown),
        (status(504, "Timeout"), OutcomeUnknown),
        (hang, OutcomeUnknown),
        (reset, OutcomeUnknown),
        (text(b'{"message":"\xff"}', 502), OutcomeUnknown),
        (text(b'{"x":' + b"[" * 9999, 403), ApiError),
    ],
)
async def test_an_unconfirmed_write_is_rejected_or_unknown(door, tmp_path, answer, error):
    door.answers = [answer]
    async with door.connect(tmp_path) as kube:
        with pytest.raises(ApiError) as caught:
            await kube.bind_pod(pod("a", 8), "n1", {}, seconds=0.3 if answer is hang else 3)
    assert type(caught.value) is error


@pytest.mark.parametrize("code", [302, 307])
async def test_a_redirect_is_not_followed(door, tmp_path, code):
    async def answer(request):
        if request.path == "/login":
            return web.json_response({})
        return web.Response(status=code, headers={"Location": "/login"})

    door.answers = [answer]
    async with door.connect(tmp_path) as kube:
        with pytest.raises(OutcomeUnknown, match=f": {code} "):
            await kube.bind_pod(pod("a", 8), "n1", {}, seconds=3)
        with pytest.raises(ApiError, match=f": {code} "):
            await kube.request("GET", "/version")
        with pytest.raises(ApiError, match=f": {code} "):
            async for _ in kube.watch(pods(), since="1", window_seconds=9, idle_seconds=9):
                pass
        with pytest.raises(ApiError, match=f": {code} "):
            await kube.open_websocket("/exec", query=[], protocol="v4.channel.k8s.io")
    assert [path for _, path, _, _ in door.asked].count("/login") == 0


class Slept:
    """A clock of a process that is suspended after the first reading."""

    def __init__(self) -> None:
        self.asked = 0

    def monotonic(self) -> float:
        self.asked += 1
        return 0.0 if self.asked == 1 else 60.0


async def test_a_process_suspended_before_sending_does_not_send(door, tmp_path):
    door.answers = [status(201, "Created")]
    async with door.connect(tmp_path) as kube:
        with pytest.raises(NotLeading, match="default/a was not begun"):
            await Writer(kube, Slept(), lambda: 6.0).bind_pod(pod("a", 8), "n1", {}, seconds=3)
        assert not door.asked
        await Writer(kube, Slept(), lambda: 600.0).bind_pod(pod("a", 8), "n1", {}, seconds=3)
    assert len(door.asked) == 1


async def test_a_write_is_repeated_after_retry_after(door, tmp_path):
    door.answers = [status(429, "TooManyRequests", retry_after="1"), status(201, "Created")]
    async with door.connect(tmp_path) as kube:
        await kube.bind_pod(pod("a", 8), "n1", {}, seconds=20)
    first, again = (query["timeout"] for _, _, query, _ in door.asked)
    assert first == "20000ms"
    assert int(again.removesuffix("ms")) <= 19_000, "the API server is told what is left"


@pytest.mark.parametrize("retry_after", ["9", "30", "99999", "-1", "soon", "Wed, 21 Oct 2026"])
async def test_a_retry_after_that_is_too_long_or_invalid_is_a_rejection(
    door, tmp_path, retry_after
):
    door.answers = [status(429, "TooManyRequests", retry_after=retry_after)]
    async with door.connect(tmp_path) as kube:
        with pytest.raises(ApiError) as caught:
            await kube.bind_pod(pod("a", 8), "n1", {}, seconds=9)
    assert (caught.value.code, len(door.asked)) == (429, 1)


async def test_a_write_that_waits_is_given_up_after_a_suspension(door, tmp_path):
    class Sleeper(SystemClock):
        slept = 0.0

        def monotonic(self) -> float:
            return super().monotonic() + self.slept

    clock, refuse = Sleeper(), status(429, "TooManyRequests", retry_after="1")

    async def refuse_and_let_sleep(request):
        asyncio.get_running_loop().call_later(0.5, setattr, clock, "slept", 60.0)
        return await refuse(request)

    door.answers = [refuse_and_let_sleep, status(201, "Created")]
    async with door.connect(tmp_path, clock) as kube:
        with pytest.raises(ApiError) as caught:
            await kube.bind_pod(pod("a", 8), "n1", {}, seconds=3)
    assert caught.value.code == 429
    assert len(door.asked) == 1, "by now another may lead"


async def test_a_condition_is_added_to_exactly_this_pod(door, tmp_path):
    door.answers = [body({})]
    condition = {"type": "x/Usable", "status": "False", "reason": "Why", "message": "because"}
    when = "2026-01-01T00:00:00Z"
    async with door.connect(tmp_path) as kube:
        written = PodCondition(*condition.values())
        await kube.set_pod_condition("default", "a", "uid-a", written, when)
    [(method, path, _, sent)] = door.asked
    assert (method, path) == ("PATCH", "/api/v1/namespaces/default/pods/a/status")
    assert door.content_types == ["application/strategic-merge-patch+json"]
    assert msgspec.json.decode(sent) == {
        "metadata": {"uid": "uid-a"},
        "status": {"conditions": [condition | {"lastTransitionTime": when}]},
    }


@pytest.mark.parametrize(
    ("fields", "error"), [(["metadata.uid"], Replaced), (["spec.nodeSelector"], ApiError)]
)
async def test_a_patch_is_strategic_and_a_wrong_uid_is_told(door, tmp_path, fields, error):
    causes = [{"reason": "FieldValueInvalid", "field": each} for each in fields]
    answer = {"code": 422, "reason": "Invalid", "details": {"causes": causes}}
    door.answers = [body({}), text(msgspec.json.encode(answer), 422)]
    patch = {"metadata": {"uid": "uid-a"}, "spec": {"schedulingGates": []}}
    async with door.connect(tmp_path) as kube:
        await kube.patch_pod("default", "a", patch, seconds=2)
        with pytest.raises(ApiError) as caught:
            await kube.patch_pod("default", "a", patch, seconds=2)
    method, path, query, sent = door.asked[0]
    assert (method, path) == ("PATCH", "/api/v1/namespaces/default/pods/a")
    assert query == {"timeout": "2000ms"}
    assert door.content_types[0] == "application/strategic-merge-patch+json"
    assert msgspec.json.decode(sent) == patch
    assert type(caught.value) is error


@pytest.mark.parametrize(
    ("wanted", "options"),
    [
        ({}, {"preconditions": {"uid": "uid-a", "resourceVersion": "7"}}),
        # The pod runs, and its status changes.
        ({"any_version": True}, {"preconditions": {"uid": "uid-a"}}),
        (
            {"any_version": True, "grace_seconds": 30},
            {"preconditions": {"uid": "uid-a"}, "gracePeriodSeconds": 30},
        ),
    ],
)
async def test_an_eviction_names_the_uid_and_the_version_unless_any_will_do(
    door, tmp_path, wanted, options
):
    door.answers = [status(201, "Created")]
    seen = pod("a", 8)
    meta = msgspec.structs.replace(seen.metadata, resource_version="7")
    async with door.connect(tmp_path) as kube:
        await kube.evict_pod(msgspec.structs.replace(seen, metadata=meta), **wanted)
    [(method, path, _, sent)] = door.asked
    assert (method, path) == ("POST", "/api/v1/namespaces/default/pods/a/eviction")
    eviction = msgspec.json.decode(sent)
    assert (eviction["apiVersion"], eviction["kind"]) == ("policy/v1", "Eviction")
    assert eviction["deleteOptions"] == options


async def test_without_a_connection_nothing_was_sent(tmp_path):
    async with Kube.connect(write_kubeconfig(tmp_path, "http://127.0.0.1:1")) as kube:
        with pytest.raises(Unreachable):
            await kube.bind_pod(pod("a", 8), "n1", {})


async def a_pod(kube):
    return await kube.get_pod("default", "a")


async def a_watch(kube):
    async for _ in kube.watch(pods(), since="1", window_seconds=60, idle_seconds=60):
        pass


class Lines:
    """A response whose lines arrive when they are put."""

    status = 200

    def __init__(self) -> None:
        self.content = self
        self._lines: asyncio.Queue[bytes] = asyncio.Queue()
        self.put = self._lines.put_nowait
        self.readany = self._lines.get

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass


@pytest.mark.parametrize("steps", range(5))
async def test_a_watch_can_be_cancelled_at_any_line(door, tmp_path, steps):
    async with door.connect(tmp_path) as kube:
        lines = Lines()

        async def answer(*_):
            return lines

        kube._send = answer

        reading = asyncio.create_task(a_watch(kube))
        lines.put(b"first\n")
        await asyncio.sleep(0.01)
        lines.put(b"second\n")
        for _ in range(steps):
            await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait([reading], timeout=1)
        assert reading.cancelled()


@pytest.mark.parametrize("answer", [body([1, 2]), text(b'{"metadata":{"name":"\xff"}}')])
async def test_a_response_that_is_not_a_pod_is_an_error(door, tmp_path, answer):
    door.answers = [answer]
    async with door.connect(tmp_path) as kube:
        with pytest.raises(ApiError, match="cannot be read"):
            await kube.get_pod("default", "a")


@pytest.mark.parametrize("code", [200, 403])
@pytest.mark.parametrize("ask", [a_pod, a_watch])
async def test_a_response_over_the_limit_is_an_error_and_is_not_kept(
    door, tmp_path, monkeypatch, code, ask
):
    most = 2**22  # much more than the event loop's own buffers for both ends, each of 256 KiB
    monkeypatch.setattr(client, "ANSWER_BYTES", most)
    monkeypatch.setattr(client, "LINE_BYTES", most)
    assert Kube.request.__kwdefaults__ is not None
    monkeypatch.setitem(Kube.request.__kwdefaults__, "most_bytes", most)

    async def large(request):
        response = web.StreamResponse(status=code)
        await response.prepare(request)
        with suppress(ConnectionError):
            for _ in range(16 * 32):
                await response.write(part)
        return response

    door.answers = [large, body({"metadata": {"name": "a"}})]
    async with door.connect(tmp_path) as kube:
        part = b"x" * (most // 16)
        tracemalloc.start()
        with pytest.raises(TooLarge, match=str(most)):
            await ask(kube)
        _, kept = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert kept < 2 * most
        assert (await a_pod(kube)).metadata.name == "a"


@pytest.mark.parametrize("name", ["..", ".", ""])
async def test_a_name_cannot_reach_another_resource(door, tmp_path, name):
    door.answers = [body({})]
    async with door.connect(tmp_path) as kube:
        with pytest.raises(ApiError, match="not a valid name"):
            await kube.get_pod("default", name)
    assert not door.asked


async def test_a_name_with_slashes_stays_one_segment(door, tmp_path):
    door.answers = [status(404, "NotFound")]
    async with door.connect(tmp_path) as kube:
        with pytest.raises(NotFound):
            await kube.get_pod("default", "../secrets/x?y")
    [(_, path, _, _)] = door.asked
    assert path == "/api/v1/namespaces/default/pods/../secrets/x?y"  # decoded: one segment sent


@pytest.mark.parametrize("excepted", [True, False])
async def test_the_proxy_of_the_environment_is_used_except_for_no_proxy(
    door, tmp_path, monkeypatch, excepted
):
    door.answers = [body({"metadata": {"name": "a"}})]
    async with TestServer(door.app) as proxy:
        monkeypatch.setenv("http_proxy", str(proxy.make_url("")))
        monkeypatch.setenv("no_proxy", "kube.invalid" if excepted else "")
        async with Kube.connect(write_kubeconfig(tmp_path, "http://kube.invalid")) as kube:
            with pytest.raises(Unreachable) if excepted else nullcontext():
                await kube.get_pod("default", "a")
    assert [path for _, path, _, _ in door.asked] == (
        [] if excepted else ["/api/v1/namespaces/default/pods/a"]
    )


def test_data_sent_into_a_cut_network_is_not_delivered_later():
    argv = [sys.executable, "-m", "tests.integration.kube.cut_off", "0.5"]
    found = msgspec.json.decode(run(["unshare", "--net", *argv], seconds=60))
    assert found["asked"] == ["GET", "GET"]
    assert found["let_go_after"] is not None
