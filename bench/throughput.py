"""Measures pods bound per second by the real kube-scheduler: with gpushare, a null extender, none.

    python -m bench.throughput [--rows exact,small,medium,large] [--rounds N] [--settings]

Every row has its own cluster (etcd, kube-apiserver, kube-scheduler; paper nodes). For each mode in
turn, kube-scheduler is started with the shipped configuration and binds some pods. It is then
stopped (SIGSTOP), the pods are created, and it continues and finds all of them at once. The time is
from the first to the last pod that a watch shows bound, without the creation of the pods. Medians
of the rounds are printed.

The CPU that each process used for a pod tells more than the rate where other work runs beside.
"""

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.apiserver import PODS, ApiServer
from bench.figures import note, note_ratio
from bench.scheduler import EXTENDER, LEADER, Mode, Scheduler
from bench.world import LABEL, Shape, add_nodes, cordon, fill, node, various, waiting
from localcluster.cluster import Cluster
from localcluster.gpushare import SCHEDULER_CONFIG, Gpushare, check_port
from localcluster.interrupts import run_command
from localcluster.paper import KEEPER
from localcluster.versions import DEFAULT, Version

NAME: Final = "gpushare-bench"
WARM_UP: Final = 30
ALONE: Final = 40  # pods created one after the other
ALONE_PAUSE: Final = 0.03  # seconds, in which what follows a binding ends
ROUND_SECONDS: Final = 90.0
WIDE: Final = "wide"  # the node that takes 600 pods
WIDE_LABEL: Final = {"bench-wide": "yes"}

NONE = Mode("no extender", "none")
NULL = Mode("null extender", "null")
FEW_NAMES = Mode("null extender, 8 names", "few")
ALL_NAMES = Mode("all names, no bind", "all names")
OURS = Mode("gpushare", "shipped")
FORWARDED = Mode("gpushare, forwarded", "forwarded")
SCORED: Final = ((100, "every node scored"), (0, "kube-scheduler's sample"))
ALL_TO_ONE: Final = "gpushare, all to one node"


Pods = Sequence[Mapping[str, Any]]
Create = Callable[[ApiServer, Pods], Awaitable[None]]


async def create_at_once(api: ApiServer, pods: Pods) -> None:
    await api.each("POST", PODS, pods)


@dataclass(frozen=True)
class Case:
    """Pods that one mode binds; ``wide``: all of them go to the one node that takes so many.

    ``create`` makes the pods and returns when kube-scheduler may bind them.
    """

    mode: Mode
    units: Sequence[int]
    name: str = ""
    wide: bool = False
    create: Create = create_at_once

    @property
    def title(self) -> str:
        return self.name or self.mode.name

    @property
    def spec(self) -> Mapping[str, Any]:
        return {"nodeSelector": WIDE_LABEL} if self.wide else {}


@dataclass(frozen=True)
class Round:
    """``failed`` attempts of kube-scheduler; the others are for each pod.

    ``writes`` and ``reads`` are requests about pods that the API server counted, ``cpu`` is in
    milliseconds by process. ``alone`` is the median of the milliseconds from a pod's creation until
    it is seen bound, of pods that are created one after the other.
    """

    rate: float
    alone: float
    failed: float
    writes: float
    reads: float
    missing: int
    cpu: Mapping[str, float]


@dataclass(frozen=True)
class Row:
    title: str
    shape: Shape
    cases: Sequence[Case]
    rounds: int = 3
    results: dict[str, list[Round]] = field(default_factory=dict)

    def middle(self, title: str, what: str) -> float:
        return statistics.median(float(getattr(each, what)) for each in self.results[title])

    def cpu(self, title: str) -> dict[str, float]:
        """Return the median of the milliseconds for a pod, by process."""
        rounds = [each.cpu for each in self.results[title]]
        return {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}


def rows() -> dict[str, Row]:
    pods = various(500)
    halves = [40] * 160
    exact = [Case(mode, halves) for mode in (NONE, NULL, FEW_NAMES, OURS)]
    usual = [Case(mode, pods) for mode in (NONE, NULL, FEW_NAMES, ALL_NAMES, OURS, FORWARDED)]
    one_node = Case(OURS, pods, ALL_TO_ONE, wide=True)
    return {
        "exact": Row("160 pods that just fill 10 nodes", Shape(10, 8, 0), exact, 5),
        "small": Row("500 pods", Shape(100, 8, 2), usual, 5),
        "medium": Row("500 pods", Shape(1000, 2, 8), [*usual, one_node]),
        "large": Row(
            "500 pods",
            Shape(5000, 1, 2),
            [Case(mode, pods) for mode in (NONE, NULL, FEW_NAMES, OURS, FORWARDED)],
        ),
    }


def settings_rows() -> dict[str, Row]:
    """Measure what kube-scheduler's own settings cost."""
    pods = various(500)
    found = {}
    for name, shape in (("medium", Shape(1000, 2, 8)), ("large", Shape(5000, 1, 2))):
        cases = [
            Case(Mode(f"{mode.name}, {text}", mode.extender, percentage), pods)
            for mode in (NONE, OURS)
            for percentage, text in SCORED
        ]
        found[name] = Row("percentageOfNodesToScore", shape, cases, 2)
    return found


@contextmanager
def cluster_up(version: Version = DEFAULT) -> Iterator[Cluster]:
    check_port()
    found = Cluster.up((), name=NAME, version=version, scheduler_config=SCHEDULER_CONFIG)
    try:
        # Nobody would renew 5,000 leases in time, and nobody then says that a node is lost.
        for name in (KEEPER, "kube-controller-manager"):
            found.stop(name, grace=1)
        yield found
    finally:
        found.down()


async def measure(row: Row, cluster: Cluster, rounds: int) -> None:
    """Fill the cluster, then run each case in turn, ``rounds`` times."""
    async with ApiServer.of(cluster) as api:
        began = time.perf_counter()
        await fill(api, row.shape)
        if any(case.wide for case in row.cases):
            await add_nodes(api, [node(WIDE, 8, units=2000, pods=600, labels=WIDE_LABEL)])
            await cordon(api, WIDE, on=True)
        print(f"  {row.shape} written in {time.perf_counter() - began:.0f} s", flush=True)
        Gpushare(cluster).apply_access()
        scheduler = Scheduler(cluster)
        scheduler.start_extenders()
        for number in range(rounds):
            for case in row.cases:
                began = time.perf_counter()
                found = await one_round(case, f"round-{number}", scheduler, api)
                row.results.setdefault(case.title, []).append(found)
                print(
                    f"  {case.title:<40} {found.rate:7.1f} pods/s, alone {found.alone:.1f} ms, "
                    f"{found.failed:.0f} failed"
                    f"{f', {found.missing} NOT BOUND' if found.missing else ''}"
                    f"; CPU ms a pod: {_cpu(found.cpu)}"
                    f"   ({time.perf_counter() - began:.0f} s)",
                    flush=True,
                )


async def one_round(case: Case, group: str, scheduler: Scheduler, api: ApiServer) -> Round:
    scheduler.use(case.mode)
    await bind_all(waiting(f"{group}-warm", various(WARM_UP)), api, f"{group}-warm")
    if case.wide:
        await cordon(api, WIDE, on=False)
    alone = await one_by_one(f"{group}-alone", various(ALONE), api)
    attempts = scheduler.attempts()
    scheduler.hold()
    made = waiting(group, case.units, **case.spec)
    await case.create(api, made)
    before = await api.requests()
    since = await api.version(PODS)
    times: list[float] = []
    watching = asyncio.create_task(watch(api, f"{LABEL}={group}", since, len(made), times))
    await asyncio.sleep(0.5)  # the watch is open, and the extender has seen the pods as well
    used = scheduler.cpu_seconds(case.mode)
    scheduler.go()
    await watching
    cpu = {
        name: (seconds - used[name]) / len(made) * 1000
        for name, seconds in scheduler.cpu_seconds(case.mode).items()
    }
    after = await api.requests()
    now = scheduler.attempts()
    failed = sum(now[result] - attempts.get(result, 0) for result in now if result != "scheduled")
    if case.wide:
        await cordon(api, WIDE, on=True)
    await api.delete_all(PODS, f"{LABEL}={group}")
    asked = {key: number - before.get(key, 0) for key, number in after.items()}
    rate = (len(times) - 1) / (times[-1] - times[0]) if len(times) > 1 else 0.0
    writes = sum(asked.get((verb, "pods", part), 0) for verb in _WRITES for part in _PARTS)
    reads = sum(asked.get((verb, "pods", part), 0) for verb in _READS for part in _PARTS)
    return Round(
        rate=rate,
        alone=alone,
        failed=failed,
        writes=writes / len(made),
        reads=(reads - 1) / len(made),  # one list is ours, for the watch
        missing=len(made) - len(times),
        cpu=cpu,
    )


_WRITES: Final = ("POST", "PUT", "PATCH", "DELETE")
_READS: Final = ("GET", "LIST")
_PARTS: Final = ("", "binding", "status", "eviction")


async def bind_all(made: Sequence[Mapping[str, Any]], api: ApiServer, group: str) -> None:
    """Create pods and return once they have been bound and deleted."""
    since = await api.version(PODS)
    await api.each("POST", PODS, made)
    times: list[float] = []
    await watch(api, f"{LABEL}={group}", since, len(made), times)
    if len(times) < len(made):
        raise RuntimeError(f"only {len(times)} of {len(made)} pods were bound: see the logs")
    await api.delete_all(PODS, f"{LABEL}={group}")


async def one_by_one(group: str, units: Sequence[int], api: ApiServer) -> float:
    """Create each pod once the last one is bound; return the median of their milliseconds.

    Both ends are seen by the same watch: when it shows the pod, and when it shows it bound.
    """
    took: list[float] = []
    shown = api.changes(f"{LABEL}={group}", await api.version(PODS))
    async with aclosing(shown), asyncio.timeout(ROUND_SECONDS):
        for made in waiting(group, units):
            creating = asyncio.create_task(api.request("POST", PODS, made))
            began = 0.0
            async for _, pod in shown:
                began = began or time.perf_counter()
                if pod.node:
                    break
            took.append((time.perf_counter() - began) * 1000)
            await creating
            await asyncio.sleep(ALONE_PAUSE)
    await api.delete_all(PODS, f"{LABEL}={group}")
    return statistics.median(took)


async def watch(api: ApiServer, label: str, since: str, count: int, times: list[float]) -> None:
    """Record when each pod is shown bound; return after ``count`` pods or a timeout."""
    try:
        async with asyncio.timeout(ROUND_SECONDS):
            async for _ in api.bound(label, since):
                times.append(time.perf_counter())
                if len(times) == count:
                    return
    except TimeoutError:
        return


HEAD: Final = """\
| | pods/s | to none | to 8 names | a pod alone, ms | failed | writes, reads a pod | CPU ms a pod \
| rounds |
|---|---|---|---|---|---|---|---|---|"""


def table(row: Row) -> str:
    """Return the lines of a Markdown table whose header is HEAD."""
    rates = {title: row.middle(title, "rate") for title in row.results}
    none, few = rates.get(NONE.name), rates.get(FEW_NAMES.name)
    lines: list[str] = []
    for title, rate in rates.items():
        results = row.results[title]
        cells = (
            title if lines else f"**{row.title}, {row.shape}**: {title}",
            f"{rate:.0f}",
            _ratio(rate, none if title != NONE.name else None),
            _ratio(rate, few if title not in {NONE.name, FEW_NAMES.name} else None),
            f"{row.middle(title, 'alone'):.1f}",
            f"{row.middle(title, 'failed'):.0f}",
            f"{row.middle(title, 'writes'):.3g}, {row.middle(title, 'reads'):.3g}",
            _cpu(row.cpu(title)),
            " ".join(f"{each.rate:.0f}" for each in results),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def note_row(name: str, row: Row) -> None:

    def compare(key: str, title: str, floor: str) -> None:
        note_ratio(key, row.middle(title, "rate"), row.middle(floor, "rate"), "pods/s")

    few, ours = FEW_NAMES.name, OURS.name
    compare(name, ours, few)
    compare(f"{name} none", ours, NONE.name)
    note_ratio(f"{name} alone", row.middle(ours, "alone"), row.middle(few, "alone"), "ms")
    cpu, least = row.cpu(ours)[EXTENDER], row.cpu(few)[EXTENDER]
    note_ratio(f"{name} cpu", cpu, least, "ms")
    note(f"{name} cpu ms", cpu)
    if name == "exact":
        note("exact failed", row.middle(ours, "failed"))
        note("writes", row.middle(ours, "writes"))
        note("reads", row.middle(ours, "reads"))
        return
    compare(f"{name} forwarded", FORWARDED.name, ours)
    if name == "medium":
        compare("one node", ALL_TO_ONE, ours)


def note_settings(name: str, row: Row) -> None:
    """Note a row of ``settings_rows``: every node scored, compared with the sample."""
    size = " 5000" if name == "large" else ""
    for mode, whose in ((NONE, ""), (OURS, " ours")):
        every, sample = (row.middle(f"{mode.name}, {text}", "rate") for _, text in SCORED)
        note_ratio(f"percentage{size}{whose}", every, sample, "pods/s")


_SHORT: Final = {
    "kube-scheduler": "scheduler",
    "kube-apiserver": "API server",
    EXTENDER: "extender",
    LEADER: "leader",
    "etcd": "etcd",
}


def _cpu(used: Mapping[str, float]) -> str:
    return ", ".join(f"{_SHORT[name]} {used[name]:.1f}" for name in _SHORT if name in used)


def _ratio(rate: float, floor: float | None) -> str:
    return f"{rate / floor:.2f}" if floor else ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.throughput", description=__doc__)
    parser.add_argument("--rows", help="all of them unless some are named")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--settings", action="store_true", help="kube-scheduler's settings instead")
    parser.add_argument("--keep-logs", type=Path, help="a folder for the extender's log")
    found = parser.parse_args()
    known = settings_rows() if found.settings else rows()
    done: list[Row] = []
    chosen = found.rows.split(",") if found.rows else list(known)
    if unknown := [name for name in chosen if name not in known]:
        parser.error(f"no such row: {', '.join(unknown)}; there are {', '.join(known)}")
    for name in chosen:
        row = known[name]
        print(f"{row.title}, {row.shape}", flush=True)
        done.append(row)
        with cluster_up() as cluster:
            try:
                asyncio.run(measure(row, cluster, found.rounds or row.rounds))
            finally:
                if found.keep_logs:
                    keep_logs(cluster, found.keep_logs)
                print(f"\n{HEAD}\n{table(row)}\n", flush=True)
        note_settings(name, row) if found.settings else note_row(name, row)
    if len(done) > 1:
        print("\n".join([HEAD, *map(table, done)]))
    return 0


def keep_logs(cluster: Cluster, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in (EXTENDER, LEADER, "null", "kube-scheduler"):
        (folder / f"{name}.log").write_bytes(cluster.log_path(name).read_bytes())


if __name__ == "__main__":
    sys.exit(run_command("bench.throughput", main))
