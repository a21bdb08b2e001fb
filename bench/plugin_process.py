"""The device plugin's calls in a process of their own, for bench.deviceplugin.

Serves the real service on ``plugin.sock`` and, as the floor, handlers that do nothing on
``floor.sock``. Each line on standard input is an order, each line on standard output its answer.
"""

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import grpc
import msgspec

from deviceplugin.allocation.allocate import Allocations
from deviceplugin.allocation.injection import Injections
from deviceplugin.allocation.pre_start import Starts
from deviceplugin.allocation.sources import Sources
from deviceplugin.cards import device_list
from deviceplugin.cards.node_cards import NodeCards
from deviceplugin.cards.survey import Terms
from deviceplugin.cdi.binding import Binding
from deviceplugin.cdi.nvidia_edits import NvidiaSpecs
from deviceplugin.cdi.rules import BindingName, Probe
from deviceplugin.cdi.spec_files import Specs
from deviceplugin.kubelet.checkpoint import CheckpointFile
from deviceplugin.kubelet.pods_endpoint import KubeletPods
from deviceplugin.kubelet.watched_pods import NodePods
from deviceplugin.report.refusals import RefusalReport
from deviceplugin.server.grpc_server import Service
from deviceplugin.server.kubelet_outage import KubeletOutage
from gpushare.clock import SystemClock
from gpushare.objects.model import Pod
from tests.fakes.driver import card

OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.so_reuseport", 0))


class Order(msgspec.Struct):
    """``cards`` are MiB, one unit each, and make a new plugin; ``pods`` are what its watch sees."""

    binding: BindingName = "late"
    cards: list[int] = []
    pods: list[Pod] | None = None


class Answer(msgspec.Struct):
    rss_kib: int
    build_ms: float = 0.0


class Served:
    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.port = folder, port
        self.watch = NodePods()
        self.server: grpc.aio.Server | None = None
        self.list_bytes = b""

    async def serve(self, order: Order, kubelet: KubeletPods) -> float:
        """Milliseconds that the device list took to build."""
        if self.server is not None:
            await self.server.stop(None)
        cards = NodeCards(Terms(1, 0, order.binding, "bench"), None)
        cards.seen([card(number, mib) for number, mib in enumerate(order.cards)])
        device_list._block.cache_clear()  # noqa: SLF001 - the time of the first list of all
        began = time.perf_counter()
        self.list_bytes = cards.message or b""
        took = (time.perf_counter() - began) * 1000
        clock = SystemClock()
        binding = Binding(
            forced=order.binding, needs_cdi=False, last=None, probe=lambda: Probe.UNKNOWN
        )
        injections = Injections(
            "runtime",
            specs=NvidiaSpecs([]),
            own_variable="all",
            runtime_classes=frozenset({""}),
            binding=binding,
        )
        no_api: Any = None  # nothing that is measured here writes to it
        checkpoint = CheckpointFile(self.folder / "kubelet_internal_checkpoint")
        specs = Specs(self.folder / "cdi")
        sources = Sources(cards, kubelet, self.watch, checkpoint, specs, injections)
        service = Service(
            cards=cards,
            allocations=Allocations(binding, sources),
            starts=Starts(sources, lambda *_: None, clock),
            refusals=RefusalReport(kube=no_api, pods=self.watch, clock=clock),
            outage=KubeletOutage(cards, kubelet, binding, clock),
            clock=clock,
        )
        self.server = grpc.aio.server(options=OPTIONS)
        self.server.add_generic_rpc_handlers((service.handler(), self.floor()))
        self.server.add_insecure_port(f"unix:{self.folder / 'plugin.sock'}")
        await self.server.start()
        return took

    def floor(self) -> grpc.GenericRpcHandler:
        async def nothing(_: bytes, __: Any) -> bytes:
            return b""

        async def same_bytes(_: bytes, __: Any) -> Any:
            yield self.list_bytes

        handlers: dict[str, Any] = {
            "Nothing": grpc.unary_unary_rpc_method_handler(nothing),
            "SameBytes": grpc.unary_stream_rpc_method_handler(same_bytes),
        }
        return grpc.method_handlers_generic_handler("floor", handlers)


def rss_kib() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


async def main() -> None:
    folder = Path(sys.argv[1])
    served = Served(folder, int(sys.argv[2]))
    kubelet = KubeletPods("127.0.0.1", served.port, folder / "kubelet.crt", folder / "token")
    async with kubelet:
        while line := await asyncio.to_thread(sys.stdin.readline):
            order = msgspec.json.decode(line, type=Order)
            took = await served.serve(order, kubelet) if order.cards else 0.0
            if order.pods is not None:
                served.watch.replaced(order.pods)
            answer = msgspec.json.encode(Answer(rss_kib(), took)).decode()
            sys.stdout.write(answer + "\n")
            sys.stdout.flush()
    if served.server is not None:
        await served.server.stop(None)


if __name__ == "__main__":
    asyncio.run(main())
