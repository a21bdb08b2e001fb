"""How long the kubelet waits for the device plugin, against handlers that do nothing.

    python -m bench.deviceplugin

The plugin's service runs in a process of its own and is called over a unix socket as the kubelet
does it: GetPreferredAllocation with all free devices, Allocate, a new checkpoint,
PreStartContainer. This process is the kubelet, with /pods behind TLS and pods as large as real
ones. The floor is an empty handler on the same server with the same request, or a stream of the
same bytes.
"""

import asyncio
import base64
import json
import ssl
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import msgspec
from aiohttp import web

from bench.figures import note, note_ratio
from bench.plugin_process import Answer, Order
from deviceplugin.cards import device_list
from deviceplugin.cards.survey import Terms, survey
from gpushare.cards.device_list import MAX_MESSAGE_BYTES
from gpushare.contract import RESOURCE_MEMORY
from gpushare.objects.model import Pod
from protos.deviceplugin.v1beta1 import api_pb2
from tests.fakes.certificates import certificate
from tests.fakes.driver import card
from tests.fakes.pods import pod

NODES = {640: [80] * 8, 32_552: [16_276] * 2, 209_715: [104_857, 104_858]}
PODS = (0, 30, 100)
CALLS = 100
USUAL = 32_552, 100  # units and pods that the one table of all benches shows
KEYS = {
    ("GetPreferredAllocation", "late"): "prefer",
    ("Allocate", "late"): "allocate late",
    ("Allocate", "early"): "allocate early",
    ("PreStartContainer", "late"): "start late",
    ("PreStartContainer", "early"): "start early",
}
PLUGIN = "/v1beta1.DevicePlugin/"


def whole_pod(made: Pod) -> dict[str, Any]:
    """A pod as the kubelet lists it: with all that gpushare does not read, about 7 KB."""
    body: dict[str, Any] = msgspec.to_builtins(made)
    fields: dict[str, Any] = {f"f:field-{number}": {"f:inner": {}} for number in range(80)}
    body["metadata"]["managedFields"] = [{"manager": "m", "fieldsV1": fields}] * 2
    for each in body["spec"]["containers"]:
        each["env"] = [{"name": f"NAME_{n}", "value": "x" * 40} for n in range(20)]
        each["volumeMounts"] = [{"name": f"v{n}", "mountPath": f"/mnt/{n}"} for n in range(5)]
    body["spec"]["volumes"] = [{"name": f"v{n}", "emptyDir": {}} for n in range(5)]
    body["spec"]["tolerations"] = [{"key": f"k{n}", "operator": "Exists"} for n in range(5)]
    return body


class Kubelet:
    """One node: its pods, its checkpoint and the plugin that it calls."""

    def __init__(self, folder: Path, plugin: asyncio.subprocess.Process, mib: list[int]) -> None:
        self.folder, self.plugin = folder, plugin
        inventory = survey(None, [card(n, each) for n, each in enumerate(mib)], Terms(1)).inventory
        self.uuids = [each.uuid for each in inventory.cards]
        self.all_ids = [
            device_list.device_id(each.tag, unit)
            for each in inventory.cards
            for unit in range(each.units)
        ]
        self.units = max(1, mib[0] // 160)
        self.entries: list[dict[str, Any]] = []
        self.bodies: list[bytes] = []
        self.channel = self._connect()

    def _connect(self) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(
            f"unix:{self.folder / 'plugin.sock'}",
            options=[
                ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
                ("grpc.use_local_subchannel_pool", 1),
            ],
        )

    async def serve(self, order: Order) -> Answer:
        await self.channel.close()
        answer = await self.order(order)
        self.channel = self._connect()
        return answer

    async def order(self, order: Order) -> Answer:
        assert self.plugin.stdin is not None
        assert self.plugin.stdout is not None
        self.plugin.stdin.write(msgspec.json.encode(order) + b"\n")
        await self.plugin.stdin.drain()
        return msgspec.json.decode(await self.plugin.stdout.readline(), type=Answer)

    def fill(self, count: int) -> list[Pod]:
        """Running pods, spread over the cards."""
        cards = (self.uuids[n % len(self.uuids)] for n in range(count))
        made: list[Pod] = [
            pod(f"p{n}", self.units, cards=(uuid,), started=True) for n, uuid in enumerate(cards)
        ]
        self.bodies = [json.dumps(whole_pod(each)).encode() for each in made]
        self.entries = []
        for place, each in enumerate(made):
            self.hold(each, self.all_ids[place * self.units : (place + 1) * self.units], b"")
        self.write_checkpoint()
        return made

    def hold(self, owner: Pod, ids: list[str], answer: bytes) -> None:
        self.entries.append(
            {
                "PodUID": owner.uid,
                "ContainerName": "app-0",
                "ResourceName": RESOURCE_MEMORY,
                "DeviceIDs": {"-1": sorted(ids)},
                "AllocResp": base64.b64encode(answer).decode(),
            }
        )

    def write_checkpoint(self) -> None:
        data = {
            "PodDeviceEntries": self.entries,
            "RegisteredDevices": {RESOURCE_MEMORY: self.all_ids},
        }
        fresh = self.folder / "checkpoint.new"
        fresh.write_text(json.dumps({"Data": data, "Checksum": 1}))
        fresh.replace(self.folder / "kubelet_internal_checkpoint")

    async def call(self, path: str, request: bytes) -> tuple[bytes, float]:
        began = time.perf_counter()
        ask: Any = self.channel.unary_unary(path)
        answer: bytes = await ask(request, timeout=30)
        return answer, (time.perf_counter() - began) * 1000

    async def first_message(self, path: str) -> float:
        began = time.perf_counter()
        ask: Any = self.channel.unary_stream(path)
        stream = ask(b"")
        await stream.read()
        took = (time.perf_counter() - began) * 1000
        stream.cancel()
        return took

    async def one_pod(self, others: list[Pod], took: dict[str, list[float]]) -> None:
        """Admit a pod and start its container, as the kubelet does; then it is gone."""
        new = pod("new", self.units, cards=(self.uuids[0],))
        self.bodies.append(json.dumps(whole_pod(new)).encode())
        held = {text for entry in self.entries for text in entry["DeviceIDs"]["-1"]}
        free = [text for text in self.all_ids if text not in held]
        wish = {"available_deviceIDs": free, "allocation_size": self.units}
        request = api_pb2.PreferredAllocationRequest(container_requests=[wish]).SerializeToString()
        ids = await self._timed("GetPreferredAllocation", request, took)
        preferred = api_pb2.PreferredAllocationResponse.FromString(ids)
        chosen = list(preferred.container_responses[0].deviceIDs)
        assert len(chosen) == self.units
        asked = api_pb2.AllocateRequest(container_requests=[{"devices_ids": chosen}])
        given = await self._timed("Allocate", asked.SerializeToString(), took)
        answer = api_pb2.AllocateResponse.FromString(given).container_responses[0]
        self.hold(new, chosen, answer.SerializeToString())
        self.write_checkpoint()
        await self.order(Order(pods=[*others, new]))
        request = api_pb2.PreStartContainerRequest(devices_ids=chosen).SerializeToString()
        await self._timed("PreStartContainer", request, took)
        self.bodies.pop()
        self.entries.pop()
        self.write_checkpoint()

    async def _timed(self, name: str, request: bytes, took: dict[str, list[float]]) -> bytes:
        _, floor = await self.call("/floor/Nothing", request)
        took.setdefault(f"floor {name}", []).append(floor)
        answer, ms = await self.call(PLUGIN + name, request)
        took.setdefault(name, []).append(ms)
        return answer


class Pages:
    kubelet: Kubelet | None = None

    async def pods(self, _: web.Request) -> web.Response:
        assert self.kubelet is not None
        items = b",".join(self.kubelet.bodies)
        return web.Response(body=b'{"kind":"PodList","items":[%s]}' % items)

    @asynccontextmanager
    async def served(self, folder: Path) -> AsyncIterator[int]:
        app = web.Application()
        app.router.add_get("/pods", self.pods)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        shown = certificate(folder, "kubelet")
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(shown, shown.with_suffix(".key"))
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        try:
            yield runner.addresses[0][1]
        finally:
            await runner.cleanup()


def line(what: str, took: list[float], floor: list[float]) -> None:
    middle, least = statistics.median(took), statistics.median(floor)
    worst, floor_worst = (sorted(each)[int(len(each) * 0.99)] for each in (took, floor))
    print(
        f"{what:<50} {middle:8.2f} ms {worst:8.2f} ms   {middle / least:6.1f} x "
        f"{worst / floor_worst:6.1f} x"
    )


async def measure_calls(kubelet: Kubelet, units: int, mib: list[int]) -> None:
    for binding in ("late", "early"):
        for count in PODS:
            others = kubelet.fill(count)
            await kubelet.serve(Order(binding, mib, others))
            took: dict[str, list[float]] = {}
            for number in range(CALLS + 5):
                if number == 5:  # noqa: PLR2004 - the first ones warm up
                    took = {}
                await kubelet.one_pod(others, took)
            for name in ("GetPreferredAllocation", "Allocate", "PreStartContainer"):
                where = f"{name}, {binding}, {units} units, {count} pods"
                line(where, took[name], took[f"floor {name}"])
                key = KEYS.get((name, binding))
                if key is not None and (units, count) == USUAL:
                    floor = statistics.median(took[f"floor {name}"])
                    note_ratio(key, statistics.median(took[name]), floor, "ms")


async def measure_list(kubelet: Kubelet, units: int, mib: list[int], least_kib: int) -> None:
    answer = await kubelet.serve(Order("late", mib, []))
    lists = [await kubelet.first_message(PLUGIN + "ListAndWatch") for _ in range(CALLS)]
    floors = [await kubelet.first_message("/floor/SameBytes") for _ in range(CALLS)]
    line(f"list of {units} units, sent", lists, floors)
    line(f"list of {units} units, built the first time", [answer.build_ms], floors)
    now = (await kubelet.order(Order())).rss_kib
    if units == max(NODES):
        note_ratio("list", statistics.median(lists), statistics.median(floors), "ms")
        note("list built", answer.build_ms)
        note_ratio("plugin memory", now / 1024, least_kib / 1024, "MiB")
    print(f"{f'RSS with {units} units':<50} {now / 1024:8.1f} MiB {now / least_kib:20.2f} x")


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="gpushare-bench-") as made:
        folder, pages = Path(made), Pages()
        (folder / "token").write_text("token")
        async with pages.served(folder) as port:
            plugin = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "bench.plugin_process", str(folder), str(port)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
            print(f"{'':<50} {'median':>11} {'p99':>11}   {'to the floor (an empty call)':>17}")
            least_kib = (await Kubelet(folder, plugin, [1]).order(Order())).rss_kib
            for units, mib in NODES.items():
                kubelet = pages.kubelet = Kubelet(folder, plugin, mib)
                await measure_list(kubelet, units, mib, least_kib)
                if units < max(NODES):
                    await measure_calls(kubelet, units, mib)
                await kubelet.channel.close()
            assert plugin.stdin is not None
            plugin.stdin.close()
            await plugin.wait()


if __name__ == "__main__":
    asyncio.run(main())
