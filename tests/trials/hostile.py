"""A tenant creates the largest possible objects while ordinary pods are bound.

    python -m tests.trials.hostile [--minutes 5]

Two replicas run behind two kube-schedulers and a real API server. Every second half minute a tenant
creates, changes and deletes the largest pods that the API server accepts quickly, and holds
half-open connections to the replicas' port. Exit code 1 if that more than doubles the 99th
percentile of filter, if a replica exceeds its manifest's memory, restarts or loses its lease, if an
ordinary pod is not bound, or if too little was tried or measured.
"""

import argparse
import ipaddress
import itertools
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Final

import yaml

from gpushare.http_server.handshakes import MAX_UNTRUSTED
from localcluster.errors import ApiError, LocalClusterError
from localcluster.gpushare import ACCESS, ROOT
from localcluster.interrupts import run_command
from localcluster.run import run
from localcluster.seats import PORT, REPLICA_PORT, Seats
from localcluster.wait import wait_until
from localcluster.workloads import pod
from tests.trials.hostile_objects import KINDS, NAMESPACE, PATH, asking, largest
from tests.trials.hostile_verdict import MOST_RATIO, Found, broken, percentile
from tests.trials.output import exit_code, printer
from tests.trials.replicas import NODES, POD_UNITS, replicas

REPLICAS: Final = 2
TURN_SECONDS: Final = 30.0
REST_SECONDS: Final = 3.0  # between two turns, to separate their effects
PODS_A_SECOND: Final = 2.0
BOUND_SECONDS: Final = 90.0
CHANGES: Final = 3  # of each object
AT_ONCE: Final = 4  # of the tenant's requests
QUICK_SECONDS: Final = 1.5  # for an idle API server to accept an object
SOURCES: Final = 20  # addresses of half-open connections: 17 can have every place
FIRST_SOURCE: Final = 50  # above the first seat's own address, where no seat is
NESTING: Final = 20_000  # Python's own limit is below what the API server takes
ORDINARY: Final = "/api/v1/namespaces/default/pods"
MERGE: Final = "application/merge-patch+json"
MIB: Final = 2**20


class Probe:
    """Measure filter at one seat from its network, as its kube-scheduler would."""

    def __init__(self, seats: Seats, seat: str) -> None:
        nodes = [f"p{number}" for number in range(NODES)]
        words = [sys.executable, "-m", "tests.trials.filter_probe", str(PORT), *nodes]
        self._process = subprocess.Popen(
            [*seats.enter(seat), *words], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        self.calls: list[tuple[float, float]] = []  # moment and milliseconds
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            moment, took = map(float, line.split())
            self.calls.append((moment, took))

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()
        self._reading.join()

    def between(self, turns: list[tuple[float, float]]) -> list[float]:
        """Return the milliseconds of the calls in some turns, the fastest first."""
        calls = [took for at, took in self.calls if any(a <= at < b for a, b in turns)]
        return sorted(calls)


class Ordinary:
    """Create a pod every half second, and delete each once it is bound."""

    def __init__(self, seats: Seats) -> None:
        self._cluster = seats.cluster
        self.created: list[str] = []
        self.bound: set[str] = set()
        self._numbers = itertools.count()

    def create(self, until: float) -> None:
        with self._cluster.api() as api:
            while time.monotonic() < until:
                name = f"ordinary-{next(self._numbers):05}"
                described = pod(name, POD_UNITS, terminationGracePeriodSeconds=0)
                with suppress(ApiError):  # a server that is busy is not what is tried here
                    api.request("POST", ORDINARY, described)
                    self.created.append(name)
                self.look(api)
                time.sleep(1 / PODS_A_SECOND)

    def look(self, api: Any) -> None:
        with suppress(ApiError):
            for found in api.get(ORDINARY)["items"]:
                if found["spec"].get("nodeName"):
                    name = found["metadata"]["name"]
                    self.bound.add(name)
                    api.request("DELETE", f"{ORDINARY}/{name}", {"gracePeriodSeconds": 0})

    def wait_bound(self) -> None:
        def left() -> str | None:
            with self._cluster.api() as api:
                self.look(api)
            missing = sorted(set(self.created) - self.bound)
            return f"{len(missing)} are not: {missing[:5]}" if missing else None

        wait_until("all ordinary pods to be bound", left, seconds=BOUND_SECONDS)


class Tenant:
    """Create, change and delete pods as fast as the API server allows."""

    def __init__(self, seats: Seats, say: Callable[[str], None]) -> None:
        self._cluster = seats.cluster
        self.sizes: dict[str, int] = {}
        self.writes = 0
        self.taken: Counter[str] = Counter()
        self.refused = 0
        self._rounds = [self._objects(worker) for worker in range(AT_ONCE)]
        with self._cluster.api() as api:
            api.request("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
            account = {"metadata": {"name": "default"}}
            with suppress(ApiError):  # the controllers make one too
                api.request("POST", f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", account)
            for kind in KINDS:
                for size in largest(kind, lambda made: self._create_quickly(api, "size", made)):
                    self.sizes[kind] = size
                with suppress(ApiError):
                    self._delete(api, "size")
        say("the largest that are taken: " + ", ".join(f"{k} {n}" for k, n in self.sizes.items()))

    def harm(self, until: float) -> None:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(lambda rounds: self._harm(until, rounds), self._rounds))

    def _harm(self, until: float, rounds: Iterator[tuple[str, str, dict[str, Any]]]) -> None:
        with self._cluster.api() as api:
            while time.monotonic() < until:
                kind, name, described = next(rounds)
                try:
                    self._create(api, name, described)
                    self.taken[kind] += 1
                    for number in range(CHANGES):
                        body = {"metadata": {"labels": {"changed": str(number)}}}
                        api.request("PATCH", f"{PATH}/{name}", body, content_type=MERGE)
                        self.writes += 1
                    self._delete(api, name)
                except ApiError:
                    self.refused += 1

    def remove(self) -> None:
        with self._cluster.api() as api, suppress(ApiError):
            api.request("DELETE", PATH, {"gracePeriodSeconds": 0})

    def _objects(self, worker: int) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Yield pods of all kinds in turn, each of them with GPU memory every other time."""
        kinds = list(KINDS)
        for number in itertools.count(worker * len(kinds) // AT_ONCE):
            kind = kinds[number % len(kinds)]
            made = KINDS[kind][0](self.sizes[kind])
            if (number + number // len(kinds) + worker) % 2:
                made = asking(made, "2")
            yield kind, f"hostile-{worker}-{number}", made

    def _create_quickly(self, api: Any, name: str, described: dict[str, Any]) -> None:
        """Raise ApiError also if it takes long: under load it would time out."""
        began = time.monotonic()
        self._create(api, name, described)
        if time.monotonic() - began > QUICK_SECONDS:
            self._delete(api, name)
            raise ApiError(0, f"{name} took too long")

    def _create(self, api: Any, name: str, described: dict[str, Any]) -> None:
        named = {**described, "metadata": {**described["metadata"], "name": name}}
        api.request("POST", PATH, named)
        self.writes += 1

    def _delete(self, api: Any, name: str) -> None:
        api.request("DELETE", f"{PATH}/{name}", {"gracePeriodSeconds": 0})
        self.writes += 1


class HalfOpen:
    """The tenant's silent connections to every replica's TLS listener."""

    def __init__(self, seats: Seats) -> None:
        first = seats.names[0]
        base = ipaddress.ip_address(seats.address(first)) + FIRST_SOURCE
        sources = [str(base + number) for number in range(SOURCES)]
        added = "".join(f"addr add {each}/24 dev eth0\n" for each in sources)
        run([*seats.enter(first), "ip", "-batch", "-"], stdin=added)
        targets = map(seats.address, seats.names)
        words = ["-m", "tests.trials.half_open", str(REPLICA_PORT), ",".join(sources), *targets]
        self._command = [*seats.enter(first), sys.executable, *words]
        self.opened = 0

    @contextmanager
    def held(self) -> Iterator[None]:
        process = subprocess.Popen(
            self._command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            yield
        finally:
            printed, _ = process.communicate()
            self.opened += int(printed or 0)


class Programs:
    """The extenders' processes at the beginning and now."""

    def __init__(self, seats: Seats) -> None:
        self._seats = seats
        self._pids = self._now()
        self._lost = {seat: self._times_lost(seat) for seat in seats.names}

    def _now(self) -> dict[str, int | None]:
        there = {each.name: each.pid for each in self._seats.cluster.processes()}
        return {seat: there.get(f"extender-{seat}") for seat in self._seats.names}

    def restarted(self) -> list[str]:
        return [seat for seat, pid in self._now().items() if pid != self._pids[seat]]

    def leases_lost(self) -> int:
        return sum(self._times_lost(seat) - self._lost[seat] for seat in self._seats.names)

    def most_mib(self) -> dict[str, int]:
        """Return the most memory that each replica has had so far."""
        found = {}
        for seat, pid in self._now().items():
            with suppress(OSError):
                status = Path(f"/proc/{pid}/status").read_text()
                found[seat] = int(re.findall(r"VmHWM:\s+(\d+)", status)[0]) // 1024
        return found

    def _times_lost(self, seat: str) -> int:
        log = self._seats.cluster.log_path(f"extender-{seat}").read_text(errors="replace")
        return log.count("this replica leads no more")


def memory_limit_mib() -> int:
    """Return the limit of the extender's container in the manifest."""
    workload = yaml.safe_load((ACCESS.parent / "extender.yaml").read_text(encoding="utf-8"))
    text = workload["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"]
    return int(text.removesuffix("Gi")) * 1024


@contextmanager
def probing(seats: Seats) -> Iterator[Probe]:
    """Probe the replica that decides."""
    leader = ""

    def missing() -> str | None:
        nonlocal leader
        leader = seats.leading_extender() or ""
        return None if leader else "none does"

    wait_until("an extender to decide", missing, seconds=40, interval=0.2)
    probe = Probe(seats, leader)
    try:
        yield probe
    finally:
        probe.close()


def try_it(seats: Seats, minutes: float, say: Callable[[str], None]) -> list[str]:
    """Take turns, print the table, and return the promises that were broken."""
    tenant, ordinary, half_open = Tenant(seats, say), Ordinary(seats), HalfOpen(seats)
    turns: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    lost: list[str] = []
    with probing(seats) as probe:
        programs = Programs(seats)
        tenant.writes = 0  # those that sized the objects are not what was tried
        for number in range(max(2, round(2 * minutes * 60 / TURN_SECONDS))):
            is_hostile = number % 2 == 1
            began = time.monotonic()
            until = began + TURN_SECONDS
            harming = threading.Thread(target=tenant.harm, args=(until,), daemon=True)
            with half_open.held() if is_hostile else nullcontext():
                if is_hostile:
                    harming.start()
                ordinary.create(until)
                turns[is_hostile].append((began, time.monotonic()))
                if is_hostile:
                    harming.join()
            time.sleep(REST_SECONDS)
        try:
            ordinary.wait_bound()
        except LocalClusterError as err:
            lost.append(str(err))
        tenant.remove()
    found = Found(
        calm=probe.between(turns[False]),
        hostile=probe.between(turns[True]),
        writes=tenant.writes,
        taken=tenant.taken,
        connections=half_open.opened,
        bound=len(ordinary.bound),
    )
    limit, most = memory_limit_mib(), programs.most_mib()
    for name, calls in (("without", found.calm), ("with", found.hostile)):
        say(
            f"filter {name} hostile objects: {len(calls)} calls, "
            f"p50 {percentile(calls, 0.5):.1f} ms, p99 {percentile(calls, 0.99):.1f} ms, "
            f"most {percentile(calls, 1.0):.1f} ms"
        )
    say(f"p99 with them is {found.ratio:.2f} times what it is without; promised {MOST_RATIO:g}")
    say(f"hostile writes {tenant.writes}, refused or timed out {tenant.refused}")
    say("taken: " + ", ".join(f"{kind} {tenant.taken[kind]}" for kind in KINDS))
    say(f"half-open connections opened: {half_open.opened}, from {SOURCES} addresses")
    say(f"ordinary pods created {len(ordinary.created)}, bound {len(ordinary.bound)}")
    say(f"most memory in MiB: {most}; limit {limit}")
    say(f"restarted: {programs.restarted()}; leases lost: {programs.leases_lost()}")
    lost += broken(found, KINDS, least_connections=MAX_UNTRUSTED * len(seats.names))
    lost += [f"{seat} had {mib} MiB" for seat, mib in most.items() if mib > limit]
    lost += [f"nobody saw the memory of {seat}" for seat in seats.names if seat not in most]
    lost += [f"the extender of {seat} was restarted" for seat in programs.restarted()]
    if times := programs.leases_lost():
        lost.append(f"a lease was lost {times} times")
    return lost


def main() -> int:
    """Run the trial; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--minutes", type=float, default=5, help="of each, with and without")
    flags = parser.parse_args()
    sys.setrecursionlimit(NESTING)
    say = printer()
    with replicas(say, REPLICAS) as seats:
        lost = try_it(seats, flags.minutes, say)
    say(f"BROKEN {len(lost)}")
    return exit_code(say, lost)


if __name__ == "__main__":
    sys.exit(run_command("hostile objects", main))
