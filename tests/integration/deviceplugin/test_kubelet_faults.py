"""The plugin registers again soon after any fault of the kubelet, socket or folder."""

import asyncio
import os
import shutil
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from prometheus_client import REGISTRY

from deviceplugin.errors import FolderDeleted
from deviceplugin.server.grpc_server import Endpoint
from deviceplugin.server.registration import Registrar
from gpushare.process.lifetime import cancel
from localcluster.wait import patient
from tests.fakes.driver import FakeDriver, card
from tests.fakes.kubelet import FakeKubelet
from tests.fakes.pods import pod
from tests.integration.deviceplugin.plugin import Plugin
from tests.waiting import eventually

pytestmark = pytest.mark.integration


@pytest.fixture
async def plugin(start) -> Plugin:
    return await start()


def sample(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


def lost(cause: str) -> float:
    return sample("gpushare_deviceplugin_registrations_lost_total", cause=cause)


@asynccontextmanager
async def stale_stream(plugin: Plugin) -> AsyncIterator[None]:
    """A reader of the device list that is not the kubelet, and that never goes away."""
    channel = grpc.aio.insecure_channel(
        f"unix:{plugin.endpoint.path}", options=[("grpc.use_local_subchannel_pool", 1)]
    )
    async with channel:
        stream = channel.unary_stream("/v1beta1.DevicePlugin/ListAndWatch")(b"")
        assert await stream.read()
        yield


async def test_its_own_socket_deleted_is_noticed(plugin, kubelet) -> None:
    before = lost("socket")
    plugin.endpoint.path.unlink()
    await kubelet.until(lambda: kubelet.registrations >= 2 and kubelet.allocatable == 30)
    await eventually(lambda: not plugin.registrar.why_not)
    assert lost("socket") == before + 1
    assert plugin.endpoint.path.is_socket()


async def test_a_kubelet_that_restarts_finds_the_plugin_ready_again(plugin, kubelet) -> None:
    before = lost("kubelet") + lost("socket")
    await kubelet.restart()
    await kubelet.until(lambda: kubelet.allocatable == 30)
    await eventually(lambda: not plugin.registrar.why_not)
    assert lost("kubelet") + lost("socket") == before + 1
    await kubelet.admit(pod("a", 8, cards=(card(0).uuid,)))


async def test_without_a_stream_it_is_not_ready_and_registers_again(plugin, kubelet) -> None:
    before = lost("stream")
    kubelet.refuse_registration = "not now"
    await kubelet.cut_stream()
    await eventually(lambda: plugin.registrar.why_not)
    assert lost("stream") == before + 1
    assert sample("gpushare_deviceplugin_registered") == 0
    kubelet.refuse_registration = ""
    await kubelet.until(lambda: kubelet.registrations >= 2 and kubelet.allocatable == 30)
    await eventually(lambda: not plugin.registrar.why_not)
    assert sample("gpushare_deviceplugin_registered") == 1


@pytest.mark.parametrize("by_socket", ["takes", "rejects"])
async def test_a_kubelet_that_reads_no_second_list_continues_with_the_first(
    plugin, kubelet, by_socket
) -> None:
    kubelet.by_socket = by_socket
    before = lost("stream")
    why = set()

    async def note() -> None:
        while True:
            why.add(plugin.registrar.why_not)
            await asyncio.sleep(0.005)

    noting = asyncio.create_task(note())
    await plugin.registrar.register_again()
    await cancel([noting])
    assert (kubelet.repeated, kubelet.registrations) == (1, 1)
    assert (why, sample("gpushare_deviceplugin_registered")) == ({""}, 1)
    assert (lost("stream"), list(plugin.registrar.ended_at)) == (before, [])
    # The end of the list that it goes on with is noticed.
    await kubelet.cut_stream()
    await kubelet.until(lambda: kubelet.registrations >= 2 and kubelet.allocatable == 30)
    assert (lost("stream"), kubelet.repeated) == (before + 1, 1)


async def test_a_registration_that_is_asked_for_again_leads_to_the_list_that_counts(
    plugin, kubelet
) -> None:
    before = lost("stream")
    await plugin.registrar.register_again()
    assert (kubelet.registrations, lost("stream")) == (2, before)
    await kubelet.cut_stream()
    await kubelet.until(lambda: kubelet.registrations >= 3 and kubelet.allocatable == 30)


async def test_a_kubelet_that_drops_the_plugin_before_it_opens_the_second_list_is_noticed(
    plugin, kubelet
) -> None:
    kubelet.drops_next = True
    again = asyncio.create_task(plugin.registrar.register_again())
    await kubelet.until(lambda: kubelet.allocatable == 0)
    await kubelet.until(lambda: kubelet.allocatable == 30)
    await again
    await eventually(lambda: not plugin.registrar.why_not)
    assert kubelet.registrations == 2


async def test_another_reader_of_the_list_does_not_hide_that_the_kubelet_stopped(
    plugin, kubelet
) -> None:
    async with stale_stream(plugin):
        await kubelet.cut_stream()
        await kubelet.until(lambda: kubelet.registrations >= 2 and kubelet.allocatable == 30)


async def test_twenty_readers_that_never_leave_hold_up_no_pod(plugin, kubelet) -> None:
    async with stale_streams(plugin, 20):
        async with asyncio.timeout(patient(10)):  # one that waits for a reader waits for ever
            await kubelet.admit(pod("a", 8, cards=(card(0).uuid,)))
        plugin.driver.shown = [card(0)]
        await kubelet.until(lambda: kubelet.allocatable == 15)


@asynccontextmanager
async def stale_streams(plugin: Plugin, count: int) -> AsyncIterator[None]:
    if not count:
        yield
        return
    async with stale_stream(plugin), stale_streams(plugin, count - 1):
        yield


async def test_a_socket_replaced_while_registering_is_not_waited_for(folder, kubelet) -> None:
    await kubelet.stop()
    path = kubelet.folder / "kubelet.sock"
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(path))
        deaf.listen()
        plugin = Plugin(folder, kubelet, FakeDriver(card(0)))
        async with plugin.running():
            await eventually(lambda: plugin.registrar.why_not == "registering with the kubelet")
            await kubelet.start()
            # A call may last 10 s: it is not waited for.
            await kubelet.until(lambda: kubelet.registrations >= 1, seconds=5)


@pytest.mark.parametrize(
    "refusal",
    [
        'requested API version "v1beta1" is not supported by kubelet. Supported version is ["v1"]',
        'the ResourceName "aliyun.com/gpu-mem" is invalid',
    ],
)
async def test_a_refusal_is_shown_and_tried_again_without_end_or_haste(
    folder, kubelet, refusal
) -> None:
    kubelet.refuse_registration = refusal
    plugin = Plugin(folder, kubelet, FakeDriver(card(0)))
    errors = sample("gpushare_deviceplugin_registrations_total", outcome="error")
    async with plugin.running():
        began = time.monotonic()
        await eventually(lambda: kubelet.refusals >= 4, seconds=20)
        assert time.monotonic() - began > 0.05
        assert refusal in plugin.registrar.why_not
        kubelet.refuse_registration = ""
        await kubelet.until(lambda: kubelet.allocatable == 15)
    now = sample("gpushare_deviceplugin_registrations_total", outcome="error")
    assert now - errors == kubelet.refusals


async def test_a_folder_that_is_created_later_or_again_is_used(folder: Path) -> None:
    sockets = folder / "device-plugins"
    sockets.mkdir()
    kubelet = FakeKubelet(sockets)
    plugin = Plugin(folder, kubelet, FakeDriver(card(0)))
    shutil.rmtree(sockets)
    async with plugin.running():
        for registrations in (1, 2):
            await eventually(lambda: "does not exist" in plugin.registrar.why_not)
            sockets.mkdir()
            await kubelet.start()
            await kubelet.until(
                lambda wanted=registrations: (
                    kubelet.registrations >= wanted and kubelet.allocatable == 15
                )
            )
            await eventually(lambda: not plugin.registrar.why_not)
            await kubelet.stop()
            shutil.rmtree(sockets)


async def test_a_folder_deleted_under_its_mount_ends_the_program(folder, kubelet) -> None:
    # A mount shows a deleted folder as long as it lasts; so does an open descriptor.
    plugin = Plugin(folder, kubelet, FakeDriver(card(0)))
    plugin.cards.seen([card(0)])
    deleted = folder / "deleted"
    deleted.mkdir()
    descriptor = os.open(deleted, os.O_RDONLY)
    mounted = Path(f"/proc/self/fd/{descriptor}")
    registrar = Registrar(mounted, Endpoint(mounted, plugin.service), plugin.service, plugin.cards)
    running = asyncio.create_task(registrar.run())
    try:
        await eventually(lambda: "does not exist" in registrar.why_not)
        assert not running.done()
        deleted.rmdir()
        with pytest.raises(FolderDeleted, match="was deleted"):
            await asyncio.wait_for(running, patient(10))
    finally:
        os.close(descriptor)
