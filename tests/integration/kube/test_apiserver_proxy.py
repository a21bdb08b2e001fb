"""The proxy of the fault trials makes exactly the requested faults."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress

import certifi
import msgspec
import pytest
from aiohttp.test_utils import TestServer

from gpushare.errors import ApiError, Conflict, OutcomeUnknown, Unreachable
from gpushare.kube.client import Kube
from gpushare.kube.paths import pods
from tests.builders import pod
from tests.fakes.apiserver_proxy import Kind, Proxy, binds, watches
from tests.integration.kube.apiserver import FrontDoor, hang, status, watch, write_kubeconfig
from tests.waiting import eventually

pytestmark = pytest.mark.integration

SECONDS = 1.0  # of a request that gets no answer, or is told to try again later
_ENDS_LATE = {Kind.HANG, Kind.UNANSWERED, Kind.TOO_MANY}


@pytest.fixture
async def behind(tmp_path) -> AsyncIterator[tuple[Kube, Proxy, FrontDoor]]:
    door = FrontDoor()
    door.answers = [status(201, "Created")]
    async with TestServer(door.app) as server:
        with Proxy(str(server.make_url("")).rstrip("/"), certifi.where(), tmp_path) as proxy:
            authority = {"certificate-authority": str(proxy.authority)}
            path = write_kubeconfig(tmp_path, proxy.url, **authority)
            async with Kube.connect(path) as kube:
                yield kube, proxy, door
            # Its end waits for a thread that may still be asking the server of this loop.
            await asyncio.to_thread(proxy.heal)


async def bind(kube: Kube, *, seconds: float = 20) -> None:
    await kube.bind_pod(pod("a", 8), "n1", {"key": "value"}, seconds=seconds)


async def test_without_a_fault_everything_is_forwarded(behind):
    kube, _, door = behind
    await bind(kube)
    [(method, path, query, sent)] = door.asked
    assert (method, path) == ("POST", "/api/v1/namespaces/default/pods/a/binding")
    assert query == {"timeout": "20000ms"}
    assert json.loads(sent)["metadata"]["annotations"] == {"key": "value"}


@pytest.mark.parametrize(
    ("kind", "error", "reaches"),
    [
        (Kind.CONFLICT, Conflict, False),
        (Kind.TOO_MANY, ApiError, False),
        (Kind.INTERNAL, OutcomeUnknown, False),
        (Kind.UNAVAILABLE, OutcomeUnknown, False),
        (Kind.HANG, OutcomeUnknown, False),
        (Kind.RESET, OutcomeUnknown, False),
        (Kind.LOST, OutcomeUnknown, True),
        (Kind.UNANSWERED, OutcomeUnknown, True),
    ],
)
async def test_a_fault_happens_as_often_as_requested(behind, kind, error, reaches):
    kube, proxy, door = behind
    fault = proxy.fault(kind, binds)
    with pytest.raises(ApiError) as caught:
        await bind(kube, seconds=SECONDS if kind in _ENDS_LATE else 20)
    assert type(caught.value) is error
    assert len(door.asked) == reaches
    await bind(kube)
    assert (fault.met, len(door.asked)) == (1, reaches + 1)


async def test_a_late_write_arrives_after_its_sender_has_given_up(behind):
    kube, proxy, door = behind
    proxy.fault(Kind.LATE, binds, seconds=2 * SECONDS)
    with pytest.raises(OutcomeUnknown):
        await bind(kube, seconds=SECONDS)
    assert not door.asked
    await eventually(lambda: door.asked)


@pytest.mark.parametrize("kind", [Kind.WATCH_ERROR, Kind.WATCH_CUT, Kind.WATCH_SILENT])
async def test_an_open_watch_breaks_at_the_line_of_the_fault(behind, kind):
    kube, proxy, door = behind
    lines = [{"type": "ADDED", "object": {"metadata": {"name": name}}} for name in "abc"]
    door.answers = [watch(*lines, then=hang)]
    fault = proxy.fault(kind, watches)
    seen = []
    with suppress(Unreachable, TimeoutError):
        async for line in kube.watch(pods(), since="1", window_seconds=9, idle_seconds=SECONDS):
            seen.append(line)  # noqa: PERF401 - what came before the error counts
    assert fault.met == 1
    match kind:
        case Kind.WATCH_ERROR:
            assert msgspec.json.decode(seen[0])["object"]["code"] == 410
        case Kind.WATCH_CUT:
            assert all(not line.endswith(b"\n") for line in seen)
        case _:
            assert not seen
