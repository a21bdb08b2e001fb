"""Measures how fast gated pods are released and bound, and what those that wait cost others.

    python -m bench.admissions [--pods 2000] [--nodes 1000] [--rounds N] [--only rate,latency]
                               [--keep-logs FOLDER]

The real kube-scheduler with gpushare, on paper nodes with one GPU.

*rate*: a quota of nothing is raised, by which all gated pods may be placed at once; the floor is
the same pods without a gate, which kube-scheduler finds all at once too. They are in one namespace,
and then in several with quotas, which get room by what they use. Any gate costs a write, so the
peer, *bare gate*, is the gate of a program that removes it from all pods and decides nothing.

*latency*: pods without GPU memory are created one by one while as many gated pods wait, half of
them for room and half for a quota; the floor is the same without any gated pods.

Rates are from the first to the last pod that a watch shows released, or bound.
"""

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.apiserver import PODS, ApiServer
from bench.figures import note, note_ratio
from bench.scheduler import EXTENDER, Scheduler
from bench.throughput import OURS, WARM_UP, bind_all, cluster_up, keep_logs
from bench.waiting_pods.setting import plain_pod
from bench.world import CARD_UNITS, HELD, LABEL, Shape, fill, pod, various, waiting
from gpushare.contract import ANNOTATION_QUOTA, GATE_ADMISSION, LABEL_QUEUE
from gpushare.kube.client import MERGE_PATCH, STRATEGIC_PATCH
from localcluster.gpushare import COMPONENTS, Gpushare
from localcluster.interrupts import run_command

PODS_A_ROUND: Final = 2000
NODES: Final = 1000
ROUNDS: Final = 3
SPACES: Final = 4  # namespaces with quotas
ROUND_SECONDS: Final = 120.0
LATENCY_SECONDS: Final = 12.0
EVERY_SECONDS: Final = 0.1
SETTLE_SECONDS: Final = 4.0
MOST_UNITS: Final = 2**31 - 1
FRESH: Final = "fresh"
_NAMESPACES: Final = "/api/v1/namespaces"
_EVERY_POD: Final = "/api/v1/pods"


@dataclass(frozen=True)
class Case:
    title: str
    spaces: tuple[str, ...]
    gate: str = GATE_ADMISSION
    is_limited: bool = False  # by a quota that has an influence on the order


FLOOR: Final = Case("not gated", ("default",), gate="")
BARE: Final = Case("bare gate", ("default",), gate="example.com/bare")
ONE: Final = Case("gated", ("queued",))
TEAMS: Final = tuple(f"team-{number}" for number in range(SPACES))
SEVERAL: Final = Case(f"gated, {SPACES} quotas", TEAMS, is_limited=True)
CASES: Final = (FLOOR, BARE, ONE, SEVERAL)


@dataclass(frozen=True)
class Rates:
    """Pods a second, and milliseconds of the extender's CPU time for each pod."""

    released: float
    bound: float
    cpu: float


@dataclass(frozen=True)
class _Seen:
    """When a watch has shown each pod first, by uid."""

    released: dict[str, float] = field(default_factory=dict)
    bound: dict[str, float] = field(default_factory=dict)


@dataclass
class Stage:
    api: ApiServer
    scheduler: Scheduler

    async def rates(self, case: Case, count: int, group: str) -> Rates:
        """Let all pods of a case be placed at once, and watch them."""
        units = various(count)
        made = self._pods(case, units, group)
        limited = case.spaces if case.gate == GATE_ADMISSION else ()
        for space in limited:
            await self._limit(space, 0)
        if case is FLOOR:
            self.scheduler.hold()
        await self.api.each("POST", _path, made)
        since, seen = await self.api.version(PODS), _Seen()
        watching = asyncio.create_task(self._watch(group, since, seen, len(made)))
        await asyncio.sleep(SETTLE_SECONDS)
        used = self.scheduler.cpu_seconds(OURS)[EXTENDER]
        for space in limited:
            await self._limit(space, sum(units) if case.is_limited else MOST_UNITS)
        if case is FLOOR:
            self.scheduler.go()
        elif case is BARE:
            patches = [_without_gate(each, case.gate) for each in made]
            await self.api.each("PATCH", _pod_path, patches, content_type=STRATEGIC_PATCH)
        await watching
        cpu = (self.scheduler.cpu_seconds(OURS)[EXTENDER] - used) / count * 1000
        for space in case.spaces:
            path = f"{_NAMESPACES}/{space}/pods"
            await self.api.delete_all(path, f"{LABEL}={group}")
        await asyncio.sleep(SETTLE_SECONDS)
        return Rates(_rate(seen.released), _rate(seen.bound), cpu)

    async def latency(self, group: str) -> float:
        """Return the median of the milliseconds from creation to binding of plain pods."""
        began: dict[str, float] = {}
        took: dict[str, float] = {}
        count = int(LATENCY_SECONDS / EVERY_SECONDS)
        since = await self.api.version(PODS)

        async def watch() -> None:
            async for name, _ in self.api.bound(f"{LABEL}={group}", since):
                took[name] = time.perf_counter() - began[name]
                if len(took) == count:
                    return

        watching = asyncio.create_task(watch())
        await asyncio.sleep(0.5)
        start = time.perf_counter()
        for number in range(count):
            name = f"{group}-{number}"
            began[name] = time.perf_counter()
            await self.api.request("POST", PODS, plain_pod(name, group))
            due = start + (number + 1) * EVERY_SECONDS
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
        async with asyncio.timeout(ROUND_SECONDS):
            await watching
        await self.api.delete_all(PODS, f"{LABEL}={group}")
        return statistics.median(took.values()) * 1000

    async def add_waiting(self, count: int) -> None:
        """Create gated pods of which one half needs more room, the other one more quota."""
        free = CARD_UNITS - HELD[1]
        large = [free + 1 + number % HELD[1] for number in range(count // 2)]
        for space, units in (("queued", large), (TEAMS[0], various(count - count // 2))):
            await self._limit(space, MOST_UNITS if units is large else 0)
            await self.api.each("POST", _path, self._pods(Case("", (space,)), units, "waits"))

    async def remove_waiting(self) -> None:
        for space in (*ONE.spaces, TEAMS[0]):
            await self.api.delete_all(f"{_NAMESPACES}/{space}/pods", f"{LABEL}=waits")

    async def add_namespace(self, name: str) -> None:
        """Create a namespace with the queue; no controller would add its account."""
        meta = {"name": name, "labels": {LABEL_QUEUE: "true"}}
        await self.api.request("POST", _NAMESPACES, {"metadata": meta})
        account = {"metadata": {"name": "default"}}
        await self.api.request("POST", f"{_NAMESPACES}/{name}/serviceaccounts", account)

    async def _limit(self, space: str, units: int) -> None:
        body = {"metadata": {"annotations": {ANNOTATION_QUOTA: str(units)}}}
        path = f"{_NAMESPACES}/{space}"
        await self.api.request("PATCH", path, body, content_type=MERGE_PATCH)

    @staticmethod
    def _pods(case: Case, units: Sequence[int], group: str) -> list[dict[str, Any]]:
        spec = {"schedulingGates": [{"name": case.gate}]} if case.gate else {}
        made = []
        for number, each in enumerate(units):
            found = pod(f"{group}-{number}", each, group, spec=spec)
            space = case.spaces[number % len(case.spaces)]
            found["metadata"]["namespace"] = space
            made.append(found)
        return made

    async def _watch(self, group: str, since: str, seen: _Seen, count: int) -> None:
        try:
            async with asyncio.timeout(ROUND_SECONDS):
                async for _, found in self.api.changes(f"{LABEL}={group}", since, _EVERY_POD):
                    now, uid = time.perf_counter(), found.uid
                    if not found.gates:
                        seen.released.setdefault(uid, now)
                    if found.node:
                        seen.bound.setdefault(uid, now)
                    if len(seen.bound) == count:
                        return
        except TimeoutError:
            print(f"  {len(seen.bound)} of {count} pods BOUND in time", flush=True)


def _path(body: Mapping[str, Any]) -> str:
    return f"{_NAMESPACES}/{body['metadata']['namespace']}/pods"


def _pod_path(body: Mapping[str, Any]) -> str:
    return f"{_path(body)}/{body['metadata']['name']}"


def _without_gate(body: Mapping[str, Any], gate: str) -> dict[str, Any]:
    found = body["metadata"]
    meta = {"name": found["name"], "namespace": found["namespace"]}
    return {"metadata": meta, "spec": {"schedulingGates": [{"name": gate, "$patch": "delete"}]}}


def _rate(seen: Mapping[str, float]) -> float:
    times = sorted(seen.values())
    return (len(times) - 1) / (times[-1] - times[0]) if len(times) > 1 else 0.0


async def measure_rates(stage: Stage, count: int, rounds: int) -> None:
    found: dict[str, list[Rates]] = {case.title: [] for case in CASES}
    for number in range(rounds):
        for place, case in enumerate(CASES):
            one = await stage.rates(case, count, f"round-{number}-{place}")
            found[case.title].append(one)
            released = f"{one.released:.0f} released/s, " if case.gate else ""
            print(
                f"  {case.title:<16} {released}{one.bound:.0f} bound/s; "
                f"{one.cpu:.2f} ms of the extender's CPU a pod",
                flush=True,
            )
    floor = _middle(found[FLOOR.title], "bound")
    bare = _middle(found[BARE.title], "bound")
    print(f"{BARE.title}: {bare:.0f} bound/s, {bare / floor:.2f} x the pods/s of {FLOOR.title}")
    for case in (ONE, SEVERAL):
        rate = _middle(found[case.title], "released")
        bound = _middle(found[case.title], "bound")
        print(
            f"{case.title}: {rate:.0f} released/s, {bound:.0f} bound/s, "
            f"{bound / floor:.2f} x the pods/s of {FLOOR.title}{_rounds(found, case, FLOOR)}, "
            f"{bound / bare:.2f} x {BARE.title}{_rounds(found, case, BARE)}"
        )
        key = "admissions" if case is ONE else "admissions quotas"
        note_ratio(key, bound, floor, "pods/s")
        note(f"{key} released", rate)


def _rounds(found: Mapping[str, Sequence[Rates]], case: Case, other: Case) -> str:
    pairs = zip(found[case.title], found[other.title], strict=True)
    return f" (rounds: {' '.join(f'{one.bound / floor.bound:.2f}' for one, floor in pairs)})"


async def measure_latency(stage: Stage, count: int, rounds: int) -> None:
    alone: list[float] = []
    beside: list[float] = []
    await stage.latency("warm-latency")
    for number in range(rounds):
        alone.append(await stage.latency(f"alone-{number}"))
        await stage.add_waiting(count)
        await asyncio.sleep(SETTLE_SECONDS)
        beside.append(await stage.latency(f"beside-{number}"))
        await stage.remove_waiting()
        await asyncio.sleep(SETTLE_SECONDS)
        print(f"  none waiting {alone[-1]:.1f} ms, {count} waiting {beside[-1]:.1f} ms", flush=True)
    floor, median = statistics.median(alone), statistics.median(beside)
    ratios = " ".join(f"{one / other:.2f}" for one, other in zip(beside, alone, strict=True))
    print(
        f"a pod without GPU memory beside {count} gated ones: {median:.1f} ms to its binding, "
        f"{median / floor:.2f} x that with none (rounds: {ratios})"
    )
    note_ratio("admissions latency", median, floor, "ms")


def _middle(found: Sequence[Rates], what: str) -> float:
    return statistics.median(float(getattr(each, what)) for each in found)


async def run(given: argparse.Namespace) -> None:
    with cluster_up() as cluster:
        try:
            async with ApiServer.of(cluster) as api:
                await fill(api, Shape(given.nodes, 1, 1))
                Gpushare(cluster).apply_access()
                cluster.kubectl("apply", "-f", str(COMPONENTS / "gates" / "access.yaml"))
                scheduler = Scheduler(cluster)
                scheduler.start_extenders()
                scheduler.use(OURS)
                await bind_all(waiting("warm", various(WARM_UP)), api, "warm")
                stage = Stage(api, scheduler)
                for space in (*ONE.spaces, *SEVERAL.spaces):
                    await stage.add_namespace(space)
                if "rate" in given.only:
                    await measure_rates(stage, given.pods, given.rounds)
                if "latency" in given.only:
                    await measure_latency(stage, given.pods, given.rounds)
        finally:
            if given.keep_logs:
                keep_logs(cluster, given.keep_logs)


def main() -> int:
    how = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("bench.admissions", description=__doc__, formatter_class=how)
    parser.add_argument("--pods", type=int, default=PODS_A_ROUND)
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--only", default="rate,latency", help="which parts, with commas")
    parser.add_argument("--keep-logs", type=Path, help="a folder for the extender's log")
    asyncio.run(run(parser.parse_args()))
    return 0


if __name__ == "__main__":
    sys.exit(run_command("bench.admissions", main))
