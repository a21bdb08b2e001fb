"""A faulty setup of the node is reported while it lasts, and by one Event."""

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client import REGISTRY

from deviceplugin.check import rules, self_check
from deviceplugin.check.self_check import SelfCheck
from deviceplugin.server.grpc_server import options
from gpushare.clock import SystemClock
from gpushare.contract import ANNOTATION_ASSIGNED, RESOURCE_MEMORY
from gpushare.objects.model import Node, NodeStatus, ObjectMeta
from gpushare.telemetry import health
from protos.deviceplugin.v1beta1 import api_pb2
from tests.fakes.driver import card
from tests.fakes.events import FakeEvents
from tests.fakes.kubelet import FakeKubelet
from tests.fakes.pods import pod
from tests.integration.deviceplugin.plugin import Plugin
from tests.waiting import eventually, running

pytestmark = pytest.mark.integration

GOOD = Node(ObjectMeta(name="n", uid="u", labels={"gpushare": "true"}))


class Checked:
    """A plugin whose node a test can change, with what it says of it."""

    def __init__(self, plugin: Plugin, kubelet: FakeKubelet) -> None:
        self.plugin, self.kubelet = plugin, kubelet
        self.node: Node | None = GOOD
        self.events = FakeEvents()
        self.checks = SelfCheck(
            kube=self.events,
            folder=kubelet.folder,
            node=lambda: self.node,
            registrar=plugin.registrar,
            pods=plugin.watch,
            checkpoint=plugin.checkpoint,
            clock=SystemClock(),
        )

    async def says(self, text: str) -> None:
        await eventually(lambda: any(text in why for why in self.checks.why_not_ready))

    async def is_content(self) -> None:
        await eventually(lambda: not self.checks.why_not_ready)


@pytest.fixture
async def checked(start, kubelet, monkeypatch):
    monkeypatch.setattr(self_check, "INTERVAL_SECONDS", 0.02)
    monkeypatch.setattr(rules, "PATIENCE_SECONDS", 0.1)
    made = Checked(await start(), kubelet)
    async with running(made.checks.run()):
        yield made


@contextmanager
def served(path: Path) -> Iterator[None]:
    """Another plugin's socket; it stays behind when that one is gone."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        yield


@pytest.mark.parametrize(
    ("name", "reason"),
    [("aliyungpushare.sock", "SecondPlugin"), ("nvidia-gpu.sock", "WholeCardPlugin")],
)
async def test_a_rival_plugin_is_named_while_it_answers(checked: Checked, name, reason) -> None:
    with served(checked.kubelet.folder / name):
        await checked.says(name)
        await eventually(lambda: checked.events.told)
    await checked.is_content()
    assert (checked.kubelet.folder / name).is_socket(), "a socket alone is no plugin"
    ((told, kind, about, text),) = checked.events.told
    assert (told, kind, about) == (reason, "Node", "n")
    assert name in text


async def test_a_socket_name_that_is_not_utf_8_is_reported(checked: Checked) -> None:
    with served(checked.kubelet.folder / os.fsdecode(b"nvidia-gpu-\xff.sock")):
        await checked.says("nvidia-gpu-\ufffd.sock is served")
        await eventually(lambda: checked.events.told)
    await checked.is_content()
    ((*_, text),) = checked.events.told
    assert text.encode()


async def test_whole_gpus_in_the_nodes_capacity_make_it_not_ready(checked: Checked) -> None:
    checked.node = Node(GOOD.metadata, NodeStatus(capacity={"nvidia.com/gpu": "2"}))
    await checked.says("nvidia.com/gpu is 2")
    checked.node = GOOD
    await checked.is_content()
    assert checked.events.reasons == ["WholeCardPlugin"]


async def test_a_missing_label_is_reported_and_the_plugin_is_ready(checked: Checked) -> None:
    app = web.Application()
    checks = checked.checks
    health.add_pages(app, lambda: checks.why_not_ready, remarks=lambda: checks.remarks)
    async with TestClient(TestServer(app)) as client:
        checked.node = Node(ObjectMeta(name="n", uid="u"))
        await eventually(lambda: checked.events.told)
        assert checked.events.reasons == ["NodeNotLabelled"]
        answer = await client.get("/readyz")
        first, second = (await answer.text()).splitlines()
        assert (answer.status, first) == (200, "ok")
        assert second.startswith("to be set right: the node's label gpushare is missing")
        assert "kubectl label node n gpushare=true" in second
        checked.node = GOOD
        await eventually(lambda: not checks.remarks)
        assert await (await client.get("/readyz")).text() == "ok\n"


async def test_an_early_finding_is_reported_once_the_node_is_known(
    checked: Checked,
) -> None:
    checked.node = None
    with served(checked.kubelet.folder / "aliyungpushare.sock"):
        await checked.says("aliyungpushare.sock")
        assert checked.events.told == []
        checked.node = GOOD
        await eventually(lambda: checked.events.reasons == ["SecondPlugin"])


async def test_a_plugin_that_registers_the_same_resource_again_and_again_is_noticed(
    checked: Checked,
) -> None:
    class Rival:
        """Registers ``aliyun.com/gpu-mem`` under another socket, as often as it is asked to."""

        def __init__(self, folder: Path) -> None:
            self.folder = folder
            self.server = grpc.aio.server()

        async def __aenter__(self):
            handlers = {
                "GetDevicePluginOptions": grpc.unary_unary_rpc_method_handler(
                    self.options, response_serializer=api_pb2.DevicePluginOptions.SerializeToString
                ),
                "ListAndWatch": grpc.unary_stream_rpc_method_handler(self.list),
            }
            self.server.add_generic_rpc_handlers(
                (grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", handlers),)
            )
            self.server.add_insecure_port(f"unix:{self.folder / 'rival.sock'}")
            await self.server.start()
            return self

        async def __aexit__(self, *_):
            await self.server.stop(None)

        async def options(self, _, __):
            return options()

        async def list(self, _, __):
            yield b""
            self.end = asyncio.Event()
            await self.end.wait()

        async def register(self) -> None:
            address = f"unix:{self.folder / 'kubelet.sock'}"
            async with grpc.aio.insecure_channel(address) as channel:
                call = channel.unary_unary("/v1beta1.Registration/Register")
                request = api_pb2.RegisterRequest(
                    version="v1beta1", endpoint="rival.sock", resource_name=RESOURCE_MEMORY
                )
                await call(request.SerializeToString())

    kubelet, registrar = checked.kubelet, checked.plugin.registrar
    async with Rival(kubelet.folder) as rival:
        await kubelet.until(lambda: kubelet.allocatable == 30)
        await rival.register()
        await kubelet.until(lambda: kubelet.allocatable == 0)
        await registrar.register_again()
        for _ in range(3):  # the other one ends its list, which ends ours, and is back before us
            await kubelet.until(lambda: kubelet.allocatable == 30)
            await eventually(lambda: not registrar.why_not)
            rival.end.set()
            await eventually(lambda: registrar.why_not)
            await rival.register()
        await checked.says("rival.sock")
    assert checked.events.reasons == ["SecondPlugin"]
    await kubelet.until(lambda: kubelet.allocatable == 30)


async def test_a_kubelet_that_stops_again_and_again_is_no_second_plugin(checked: Checked) -> None:
    kubelet = checked.kubelet
    for _ in range(3):
        await eventually(lambda: not checked.plugin.registrar.why_not)
        await kubelet.cut_stream()  # one that ends leaves its socket until the next one starts
        await eventually(lambda: checked.plugin.registrar.why_not)
        await kubelet.restart()
        await kubelet.until(lambda: kubelet.allocatable == 30)
    await eventually(lambda: not checked.plugin.registrar.why_not)
    await checked.checks._check_node()
    assert checked.checks.why_not_ready == []
    assert checked.events.told == []


async def test_a_running_pod_without_a_checkpoint_entry_is_reported_once(
    checked: Checked, caplog
) -> None:
    def forgotten_pods() -> float | None:
        return REGISTRY.get_sample_value("gpushare_deviceplugin_forgotten_pods")

    waiting = pod("a", 8, cards=(card(0).uuid,))
    await checked.kubelet.admit(waiting)
    assigned = {ANNOTATION_ASSIGNED: "true"}
    # The decision of the one that runs is of no matter here, so none is given.
    runs = pod("a", 8, uid=waiting.uid, annotations=assigned, started=True)
    checked.plugin.watch.changed(runs)
    path = checked.kubelet.folder / "kubelet_internal_checkpoint"
    path.write_text("{")  # half written says nothing
    await eventually(lambda: "devices are not known" in caplog.text)
    assert checked.events.told == []
    path.unlink()
    await eventually(lambda: checked.events.told)
    assert forgotten_pods() == 1
    ((reason, kind, name, text),) = checked.events.told
    assert (reason, kind, name) == ("DevicesForgotten", "Pod", "a")
    assert "delete the pod" in text
    checked.plugin.watch.deleted(runs)
    await eventually(lambda: forgotten_pods() == 0)


async def test_a_pod_that_started_without_a_call_is_reported_once(checked: Checked) -> None:
    def never_asked_for() -> float | None:
        return REGISTRY.get_sample_value("gpushare_deviceplugin_never_asked_for_pods")

    silent = pod("silent", 8, cards=(card(0).uuid,), started=True)
    checked.plugin.watch.changed(silent)
    await eventually(lambda: checked.events.told)
    assert never_asked_for() == 1
    ((reason, kind, name, text),) = checked.events.told
    assert (reason, kind, name) == ("StartedWithoutPlugin", "Pod", "silent")
    assert "Delete the pod now" in text
    assert checked.plugin.writes.written == [], "its GPU is not known"
    checked.plugin.watch.deleted(silent)
    await eventually(lambda: never_asked_for() == 0)
