"""Draws what the extender's event loop does while one filter waits, beside binds and watch events.

    python -m bench.filter_trace [PICTURE.svg]

The real kube-scheduler binds 500 pods on 100 nodes, as in bench.throughput. The kernel's time of
each packet on loopback says when a filter arrives and when its answer leaves; the extender's own
steps (bench/traced_extender.py) say what it does in between. The picture shows the filter whose
time is the median of those that met both a bind and a watch event.
"""

import asyncio
import socket
import statistics
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from bench.apiserver import ApiServer
from bench.scheduler import EXTENDER, Scheduler
from bench.throughput import OURS, cluster_up, one_round, rows
from bench.traced_extender import Step
from bench.world import fill
from gpushare.contract import EXTENDER_PORT, EXTENDER_PREFIX
from localcluster.cluster import Cluster
from localcluster.gpushare import Gpushare
from localcluster.interrupts import run_command

_IPV4: Final = 0x0800
_OUTGOING: Final = 4  # PACKET_OUTGOING: loopback shows each packet twice
_STAMPS: Final = 35  # SO_TIMESTAMPNS
_BUFFER: Final = 64 * 2**20
_FILTER: Final = f"POST {EXTENDER_PREFIX}/filter".encode()
_MARGIN: Final = 300_000  # ns before and after the filter in the picture
IDLE: Final = "no CPU"  # ready to run, while both CPUs run other programs, or asleep
LANES: Final = ("filter", "decision", "request read", "bind", "write", "watch event", IDLE)
COLORS: Final = dict(
    zip(
        LANES,
        ("#4caf7a", "#1f7a4d", "#8e6bbf", "#d9822b", "#b7791f", "#7b8794", "#dddddd"),
        strict=True,
    )
)


@dataclass(frozen=True)
class Call:
    """A filter on the wire, in ns since the epoch: its last packet, and the answer's first."""

    arrived: int
    answered: int


class Sniffer(threading.Thread):
    """Records the filters of kube-scheduler until it is stopped; needs root."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.calls: list[Call] = []
        self._is_stopped = False
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_IPV4))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
        self._socket.setsockopt(socket.SOL_SOCKET, _STAMPS, 1)
        self._socket.bind(("lo", 0))
        self._socket.settimeout(0.2)

    def stop(self) -> None:
        self._is_stopped = True
        self.join()
        self._socket.close()

    def run(self) -> None:
        asked: dict[int, int] = {}  # by kube-scheduler's port: when the last packet came
        while not self._is_stopped:
            try:
                packet, extra, _, address = self._socket.recvmsg(256, 64)
            except TimeoutError:
                continue
            if address[2] == _OUTGOING:
                continue
            begin = 14 + (packet[14] & 15) * 4
            source, target = struct.unpack("!HH", packet[begin : begin + 4])
            payload = packet[begin + (packet[begin + 12] >> 4) * 4 :]
            if not payload or EXTENDER_PORT not in {source, target}:
                continue
            seconds, ns = struct.unpack("qq", extra[0][2][:16])
            now = seconds * 10**9 + ns
            if target == EXTENDER_PORT and (source in asked or payload.startswith(_FILTER)):
                asked[source] = now
            elif source == EXTENDER_PORT and target in asked:
                self.calls.append(Call(asked.pop(target), now))


async def record(cluster: Cluster, steps: Path) -> list[Call]:
    """Bind pods as bench.throughput does; return the filters, and have the steps written."""
    row = rows()["small"]
    (case,) = [each for each in row.cases if each.title == OURS.name]
    async with ApiServer.of(cluster) as api:
        await fill(api, row.shape)
        Gpushare(cluster).apply_access()
        scheduler = Scheduler(cluster)
        scheduler.start_extenders(steps)
        await one_round(case, "warm", scheduler, api)
        sniffer = Sniffer()
        sniffer.start()
        began = time.time_ns()
        found = await one_round(case, "traced", scheduler, api)
        sniffer.stop()
        cluster.stop(EXTENDER, grace=10)
        print(f"{found.rate:.0f} pods/s while traced, {len(sniffer.calls)} filters")
        return [each for each in sniffer.calls if each.arrived > began]


def with_gaps(steps: Sequence[Step]) -> list[Step]:
    """Return the steps in the order of their beginnings, and the time without a CPU in between.

    It is drawn at the end of each gap: what the loop does there besides the steps comes before.
    """
    found, last = [], None
    for step in sorted(steps, key=lambda each: each.began):
        found.append(step)
        if last is not None and step.began > last.ended:
            missing = (step.began - last.ended) - (step.cpu[0] - last.cpu[1])
            begin = max(step.began - missing, last.ended)
            found.append(Step(IDLE, begin, step.began, (step.cpu[0], step.cpu[0])))
        if last is None or step.ended > last.ended:
            last = step
    return found


def within(call: Call, steps: Sequence[Step]) -> list[Step]:
    return [each for each in steps if each.ended > call.arrived and each.began < call.answered]


def of_call(call: Call, steps: Sequence[Step], what: str) -> int:
    """Return the ns of the call in which the loop did this."""
    return sum(
        min(each.ended, call.answered) - max(each.began, call.arrived)
        for each in within(call, steps)
        if each.what == what
    )


def chosen(calls: Sequence[Call], steps: Sequence[Step]) -> Call:
    """Return the median of the filters that met a bind and a watch event."""
    wanted = {"bind", "watch event"}
    met = [call for call in calls if wanted <= {each.what for each in within(call, steps)}]
    if not met:
        raise RuntimeError(f"none of {len(calls)} filters met a bind and a watch event: run again")
    print(f"{len(met)} of {len(calls)} filters met both a bind and a watch event")
    return sorted(met, key=lambda call: call.answered - call.arrived)[len(met) // 2]


def shares(calls: Sequence[Call], steps: Sequence[Step]) -> Iterator[str]:
    """Return lines on how the time of filters is spent, in the mean."""
    times = [(call.answered - call.arrived) / 1e6 for call in calls]
    middle, mean = statistics.median(times), statistics.mean(times)
    yield f"a filter on the wire: {middle:.2f} ms, mean {mean:.2f}"
    for what in LANES:
        mean = statistics.mean(of_call(call, steps, what) for call in calls) / 1e6
        yield f"  {what:<14} {mean:.3f} ms"


def picture(call: Call, steps: Sequence[Step]) -> str:
    """Return an SVG with a lane for each kind of step, around one call."""
    begin, end = call.arrived - _MARGIN, call.answered + _MARGIN
    left, width, lane = 130, 800, 26
    scale = width / (end - begin)

    def bar(since: int, until: int, row: int, color: str) -> str:
        since, until = max(since, begin), min(until, end)
        x, wide = left + (since - begin) * scale, max((until - since) * scale, 1)
        return (
            f'<rect x="{x:.1f}" y="{row * lane + 34}" width="{wide:.1f}" height="18" '
            f'fill="{color}"/>'
        )

    names = ("on the wire", *LANES)
    height = len(names) * lane + 70
    size = f"{left + width + 20} {height}"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" font-size="13">',
        f'<rect width="{left + width + 20}" height="{height}" fill="#ffffff"/>',
        '<g font-family="sans-serif">',
    ]
    for place, name in enumerate(names):
        lines.append(f'<text x="8" y="{place * lane + 48}" fill="#222">{name}</text>')
    for time_ns in (call.arrived, call.answered):
        x = left + (time_ns - begin) * scale
        lines.append(
            f'<line x1="{x:.1f}" y1="28" x2="{x:.1f}" y2="{height - 32}" stroke="#c0392b"/>'
        )
    x = left + (call.arrived - begin) * scale
    lines.append(f'<text x="{x:.1f}" y="20" fill="#c0392b">filter arrives</text>')
    x = left + (call.answered - begin) * scale
    took = (call.answered - call.arrived) / 1e6
    lines.append(
        f'<text x="{x:.1f}" y="20" fill="#c0392b" text-anchor="end">answered: {took:.2f} ms</text>'
    )
    lines.append(bar(call.arrived, call.answered, 0, "#e6b0aa"))
    lines += [
        bar(step.began, step.ended, names.index(step.what), COLORS[step.what])
        for step in steps
        if step.ended > begin and step.began < end
    ]
    base = height - 24
    lines.append(f'<line x1="{left}" y1="{base}" x2="{left + width}" y2="{base}" stroke="#222"/>')
    for tick in range(int((end - begin) / 1e6 * 2) + 1):
        x = left + tick * 500_000 * scale
        lines.append(
            f'<text x="{x:.1f}" y="{base + 16}" fill="#222" text-anchor="middle">'
            f"{tick / 2:g} ms</text>"
        )
    return "\n".join([*lines, "</g></svg>"]) + "\n"


def main() -> int:
    with tempfile.TemporaryDirectory() as folder, cluster_up() as cluster:
        path = Path(folder) / "steps.json"
        calls = asyncio.run(record(cluster, path))
        steps = with_gaps(msgspec.json.decode(path.read_bytes(), type=list[Step]))
    print("\n".join(shares(calls, steps)))
    found = picture(chosen(calls, steps), steps)
    if sys.argv[1:]:
        Path(sys.argv[1]).write_text(found, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(run_command("bench.filter_trace", main))
