"""The stream of changes on real sockets: what viewers receive, when they are dropped, the end."""

import asyncio
import json
import socket
import time
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
import pytest
from prometheus_client import REGISTRY

from extender.page import streams
from extender.server.authorization import ALLOWED_SECONDS
from extender.server.limits import MAX_STREAMS
from gpushare.http_server.listeners import Listener, serve_app
from localcluster.wait import patient
from tests.builders import node, pod
from tests.unit.extender.scripted import PREFIX, bound
from tests.unit.extender.server.test_authorization import Reviews, bearer, reading
from tests.waiting import eventually

CHANGES = f"{PREFIX}/changes"


async def event(answer, kind):
    """Return the next event of a kind, within 20 s; skip others before it."""
    async with asyncio.timeout(patient(20)):
        while True:
            line = (await answer.content.readline()).decode()
            assert line, f"the stream ended before {kind}"
            if line == f"event: {kind}\n":
                return json.loads((await answer.content.readline()).decode()[6:])


def viewers():
    return REGISTRY.get_sample_value("gpushare_extender_viewers")


async def test_a_viewer_receives_everything_and_then_changes(client, bench):
    async with client.get(CHANGES) as answer:
        assert answer.status == 200
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.content_type == "text/event-stream"
        [first] = (await event(answer, "changes"))["nodes"]
        assert [card["pods"] for card in first["devs"]] == [[], []]
        await event(answer, "whole")
        bench.add(bound("a", 8, "GPU-1"), pod("w", 8))
        changed = await event(answer, "changes")
        assert [card["usedGPU"] for card in changed["nodes"][0]["devs"]] == [0, 8]
        assert [each["name"] for each in changed["pods"]] == ["w"]


async def test_a_viewer_receives_heartbeats_while_nothing_changes(client, monkeypatch):
    monkeypatch.setattr(streams, "HEARTBEAT_SECONDS", 0.01)
    async with client.get(CHANGES) as answer:
        await event(answer, "whole")
        async with asyncio.timeout(patient(5)):
            assert await answer.content.readline() == b"\n"
            assert await answer.content.readline() == b":\n"


async def test_viewers_share_one_feed_that_is_dropped_after_the_last(client, routes, monkeypatch):
    updates = []
    feed, real = streams.ClusterFeed, streams.ClusterFeed.update
    monkeypatch.setattr(feed, "update", lambda self: updates.append(self) or real(self))
    monkeypatch.setattr(streams, "UPDATE_SECONDS", 60.0)
    answers = [await client.get(CHANGES) for _ in range(5)]
    for answer in answers:
        await event(answer, "whole")
    assert (len(updates), viewers()) == (1, 5)
    monkeypatch.setattr(streams, "UPDATE_SECONDS", 0.01)
    for answer in answers:
        answer.close()
    await eventually(lambda: viewers() == 0)
    assert routes._streams._feed is None


async def test_a_viewer_beyond_the_limit_is_rejected_until_another_leaves(client):
    answers = [await client.get(CHANGES) for _ in range(MAX_STREAMS)]
    async with client.get(CHANGES) as rejected:
        assert rejected.status == 429
        assert "try again" in (await rejected.json())["Error"]
    async with client.get(f"{PREFIX}/inspect") as read:
        assert read.status == 200
    answers.pop().close()

    async def is_admitted():
        async with client.get(CHANGES) as answer:
            return answer.status == 200

    async with asyncio.timeout(patient(5)):
        while not await is_admitted():  # noqa: ASYNC110 - asked over a socket
            await asyncio.sleep(0.05)


@asynccontextmanager
async def stalled_viewer(port):
    """A viewer whose machine accepts a few bytes and then nothing."""
    with socket.socket() as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        made.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(made, ("127.0.0.1", port))
        await loop.sock_sendall(made, f"GET {CHANGES} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        yield made


def fill(bench):
    """Add more nodes than all buffers between two local programs can store."""
    for i in range(3000):
        bench.cluster.node_changed(node(f"n{i}", *[16] * 16))


async def test_a_stalled_viewer_is_dropped_and_others_continue(client, bench, monkeypatch):
    monkeypatch.setattr(streams, "SEND_SECONDS", 1.0)
    fill(bench)
    async with stalled_viewer(client.port):
        await eventually(lambda: viewers() == 1)
        async with client.get(CHANGES) as answer:
            await event(answer, "whole")
            await eventually(lambda: viewers() == 1)
            bench.add(pod("w", 8))
            assert (await event(answer, "changes"))["pods"]


async def test_the_buffer_of_a_slow_viewer_is_bounded(client, bench, monkeypatch):
    monkeypatch.setattr(streams, "UPDATE_SECONDS", 0.02)
    fill(bench)
    async with stalled_viewer(client.port):
        await eventually(lambda: viewers() == 1)
        [transport] = (each for each in client.server.runner.server.connections)
        await eventually(lambda: transport.transport.get_write_buffer_size() > 64 * 1024)
        async with client.get(CHANGES) as other:
            await event(other, "whole")
            for i in range(20):
                bench.cluster.node_changed(node(f"m{i}", *[16] * 16))
                await event(other, "changes")
        assert transport.transport.get_write_buffer_size() < 256 * 1024


async def test_streams_end_at_once_at_shutdown(bench, routes, unused_tcp_port):
    fill(bench)
    listener = Listener(
        "test", "127.0.0.1", unused_tcp_port, connections=5, idle_seconds=1.0,
        stop_seconds=600.0,  # for other requests
    )  # fmt: skip
    async with AsyncExitStack() as stack, serve_app(listener, routes.app()):
        session = await stack.enter_async_context(aiohttp.ClientSession())
        url = f"http://127.0.0.1:{listener.port}{CHANGES}"
        answer = await stack.enter_async_context(session.get(url))
        await stack.enter_async_context(stalled_viewer(listener.port))
        await event(answer, "whole")
        await eventually(lambda: viewers() == 2)
        ended, began = asyncio.create_task(event(answer, "end")), time.monotonic()
    assert time.monotonic() - began < patient(streams.STOP_SECONDS + 2)
    assert "shutting down" in (await ended)["why"]


async def test_a_stream_outlasts_the_idle_time_of_connections(
    bench, routes, unused_tcp_port, monkeypatch
):
    monkeypatch.setattr(streams, "HEARTBEAT_SECONDS", 0.3)
    listener = Listener("test", "127.0.0.1", unused_tcp_port, connections=5, idle_seconds=0.1)
    url = f"http://127.0.0.1:{listener.port}{CHANGES}"
    async with (
        serve_app(listener, routes.app()),
        aiohttp.ClientSession() as session,
        session.get(url) as answer,
    ):
        await event(answer, "whole")
        async with asyncio.timeout(patient(5)):
            assert [await answer.content.readline() for _ in range(4)][1::2] == [b":\n", b":\n"]
        bench.add(pod("w", 8))
        assert (await event(answer, "changes"))["pods"]


@pytest.fixture
async def reviewed(bench):
    reviews = Reviews()
    async with reading(bench, reviews) as made:
        made.reviews = reviews
        yield made


async def test_under_review_the_page_is_public_and_the_cluster_is_not(reviewed):
    for path in ("page", "page/main.js"):
        assert (await reviewed.get(f"{PREFIX}/{path}")).status == 200
    for headers, status in (({}, 401), (bearer("bad"), 401), (bearer("good"), 200)):
        async with reviewed.get(CHANGES, headers=headers) as answer:
            assert answer.status == status


async def test_a_stream_ends_when_its_right_is_revoked(reviewed, bench, monkeypatch):
    monkeypatch.setattr(streams, "REVIEW_SECONDS", 0.05)
    async with reviewed.get(CHANGES, headers=bearer("good")) as answer:
        await event(answer, "whole")
        reviewed.reviews.may.clear()
        bench.add(pod("w", 8))
        assert (await event(answer, "changes"))["pods"]  # the right is cached for a minute
        bench.time.now += ALLOWED_SECONDS
        assert "may not list pods" in (await event(answer, "end"))["why"]
        assert await answer.content.read() in (b"", b"\n")
