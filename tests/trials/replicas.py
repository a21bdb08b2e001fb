"""Three replicas behind three kube-schedulers: 500 pods are bound while the leader fails.

    python -m tests.trials.replicas [--pods 500] [--only killed,paused,cut_off,rolling]

Each part creates pods on paper nodes. Once a fifth is bound, the leader is killed, paused longer
than its lease or cut off from the API server, or all replicas restart one by one. Exit code 1 if
an overbooked card was not corrected, a pod was bound without cards or never, or a ledger differs
from the API server.
"""

import argparse
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, Final

import yaml

from localcluster.cluster import Cluster
from localcluster.errors import ApiError, LocalClusterError
from localcluster.gpushare import ACCESS, SCHEDULER_CONFIG, Gpushare
from localcluster.interrupts import run_command
from localcluster.seats import Seats
from localcluster.wait import wait_until
from localcluster.workloads import pod
from tests.cluster.bringup import fresh
from tests.cluster.history import Change, History
from tests.trials.cards_over_time import CARDS as CARDS_KEY
from tests.trials.cards_over_time import asked
from tests.trials.output import exit_code, printer
from tests.trials.retries import retried_pods
from tests.trials.stage import paper_gpu_node

NAME: Final = "gpushare-replicas"
NODES, CARDS, UNITS = 10, 8, 16
POD_UNITS: Final = 2
PAUSE_SECONDS: Final = 9.0  # the lease is 6 s
CPU_SECONDS: Final = 6.0
TURN_SECONDS: Final = 5.0  # kube-scheduler waits for an extender
SLACK_SECONDS: Final = 4.0
WAITING: Final = 10  # pods with GPU memory before one without
BOUND_SECONDS: Final = 90.0


def killed_within() -> float:
    """Return the seconds until the kubelet has killed an extender that hangs."""
    workload = yaml.safe_load((ACCESS.parent / "extender.yaml").read_text(encoding="utf-8"))
    probe = workload["spec"]["template"]["spec"]["containers"][0]["livenessProbe"]
    asking = probe["periodSeconds"] * probe["failureThreshold"] + probe["timeoutSeconds"]
    return float(asking + probe["terminationGracePeriodSeconds"])


class Cards(History):
    """The watch history of all pods, with the units of each card at every moment."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self.held: Counter[str] = Counter()
        self.bound: dict[str, str] = {}
        self.over: list[str] = []
        self.bare: list[str] = []
        self._of: dict[str, tuple[str, int]] = {}

    def listed(self, found: list[Change]) -> None:
        there = {change.uid for change in found}
        for uid in [uid for uid in self._of if uid not in there]:
            self._drop(uid)
        for change in found:
            self.changed(change)

    def changed(self, change: Change) -> None:
        super().changed(change)
        if change.has_ended:
            self._drop(change.uid)
            return
        if not change.node or change.uid in self._of:
            return
        self.bound[change.name] = change.node
        card = change.annotations.get(CARDS_KEY, "")
        units = asked(change)
        if not units:
            return
        if not card:
            self.bare.append(change.name)
        self._of[change.uid] = (card, units)
        self.held[card] += units
        if self.held[card] > UNITS:
            self.over.append(f"{card} held {self.held[card]} of {UNITS} with {change.name}")

    def _drop(self, uid: str) -> None:
        card, units = self._of.pop(uid, ("", 0))
        self.held[card] -= units


class Trial:
    """One cluster for all parts; ``lost`` must stay empty."""

    def __init__(
        self,
        seats: Seats,
        history: Cards,
        pods: int,
        say: Callable[[str], None],
        *,
        selector: Mapping[str, str] | None = None,
    ) -> None:
        self.seats, self.history, self.pods, self.say = seats, history, pods, say
        self._spec = {"terminationGracePeriodSeconds": 0, "nodeSelector": dict(selector or {})}
        self.lost: list[str] = []

    def part(self, name: str, event: Callable[[str], None]) -> None:
        """Bind pods while ``event`` happens to the seat that leads, and judge what came of it."""
        leader = self.seats.wait_leading_extender()
        names = [f"{name}-{number:03}" for number in range(self.pods)]
        begun = time.monotonic()
        before = len(self.history.over)
        creating = threading.Thread(target=self._create, args=(names,), daemon=True)
        creating.start()
        self._wait_bound(names, self.pods // 5, BOUND_SECONDS)
        self.say(f"{name}: {self._count(names)} of {self.pods} pods bound, now to {leader}")
        event(leader)
        creating.join(60)
        try:
            self._wait_bound(names, self.pods, BOUND_SECONDS)
        except LocalClusterError as err:
            self.lost.append(f"{name}: {err}")
        took = time.monotonic() - begun
        self._judge(name, before)
        leader = self.seats.wait_leading_extender()
        self.say(
            f"{name}: {self._count(names)} bound after {took:.0f} s, {leader} leads; "
            f"cards given away twice and mended {len(self.history.over) - before}, "
            f"bound without cards {len(self.history.bare)}, lost {len(self.lost)}"
        )
        self._delete_all()

    def killed(self, leader: str) -> None:
        self.seats.kill(leader)

    def apart(self) -> None:
        """Let the leading extender run on another seat than the leading kube-scheduler."""
        while (leader := self.seats.wait_leading_extender()) == self.seats.leading_scheduler():
            self.seats.restart(leader)

    def paused(self, leader: str) -> None:
        """Pause the leader for longer than its lease; a pod without GPU must not wait for it."""
        self.seats.pause(leader)
        try:
            took = self._cpu_only("paused")
            time.sleep(max(0.0, PAUSE_SECONDS - took))
        finally:
            self.seats.go_on(leader)

    def beside(self, waiting: int) -> None:
        """Pause the extender on the seat of the leading kube-scheduler.

        Each of ``waiting`` pods with GPU memory then costs 5 s, until the kubelet kills it.
        """
        seat, most = self.seats.leading_scheduler(), killed_within()
        names = [f"beside-{number}" for number in range(waiting)]
        self.seats.pause(seat)
        kubelet = threading.Timer(most, self.seats.kill, [seat])
        kubelet.start()
        try:
            for name in names:
                self._create_one(pod(name, POD_UNITS, terminationGracePeriodSeconds=0))
            how = f"paused beside the leading kube-scheduler, {waiting} before it"
            self._cpu_only(how, min(TURN_SECONDS * waiting, most) + SLACK_SECONDS)
        finally:
            kubelet.cancel()
            with suppress(LocalClusterError):  # it was killed, and comes again by itself
                self.seats.go_on(seat)
        self._wait_bound(names, waiting, BOUND_SECONDS)
        self._delete_all()

    def _cpu_only(self, how: str, most: float = CPU_SECONDS) -> float:
        """Create a pod without GPU and return the seconds until it is bound."""
        begun = time.monotonic()
        self.history.bound.pop("cpu-only", None)
        self._create_one(pod("cpu-only", terminationGracePeriodSeconds=0))
        self._wait_bound(["cpu-only"], 1, 60)
        took = time.monotonic() - begun
        self.say(f"{how}: a pod without GPU was bound after {took:.1f} s")
        if took > most:
            self.lost.append(f"{how}: a pod without GPU waited for {took:.1f} s")
        return took

    def cut_off(self, leader: str) -> None:
        self.seats.cut_off(leader)
        try:
            time.sleep(PAUSE_SECONDS + 3)
        finally:
            self.seats.join_again(leader)

    def rolling(self, leader: str) -> None:
        """Restart all replicas, each once the one before it is ready; the leader first."""
        for seat in sorted(self.seats.names, key=lambda each: each != leader):
            self.seats.restart(seat)
            self.wait_ready(seat)

    def wait_ready(self, *seats: str) -> None:
        def unready() -> str | None:
            for seat in seats:
                try:
                    status, text = self.seats.ask(seat, "/readyz")
                except ApiError as err:
                    return str(err)
                if status != 200:
                    return f"{seat}: {text}"
            return None

        wait_until("every extender to be ready", unready, seconds=40)

    def _judge(self, name: str, before: int) -> None:
        """Compare every replica's ledger with what the watch has shown."""
        self._judge_given_twice(self.history.over[before:])
        self.lost += [f"{each} was bound without cards" for each in self.history.bare]
        try:
            self.history.check_bound_once_and_whole()
        except AssertionError as err:
            self.lost.append(f"{name}: {str(err)[:300]}")

        def differs() -> str | None:
            wanted = +self.history.held
            for seat in self.seats.names:
                try:
                    nodes = self.seats.inspect(seat)
                except ApiError as err:
                    return str(err)
                found = Counter({c["uuid"]: c["usedGPU"] for n in nodes for c in n["devs"]})
                if +found != wanted:
                    return f"{seat}: {len((+found - wanted) + (wanted - +found))} cards differ"
            return None

        try:
            wait_until("every ledger to be as the API server", differs, seconds=20)
        except LocalClusterError as err:
            self.lost.append(f"{name}: {err}")
        for seat in self.seats.names:
            if count := self.seats.metric(seat, "gpushare_ledger_differences_total"):
                self.lost.append(f"{name}: {seat} found {count:.0f} differences in its ledger")

    def _judge_given_twice(self, over: list[str]) -> None:
        """Judge writes that passed their fence (docs/dev/decisions.md): corrected and counted."""
        if not over:
            return
        self.say(f"given away twice: {'; '.join(over[:5])}")

        def still_over() -> str | None:
            found = [card for card, units in self.history.held.items() if units > UNITS]
            return ", ".join(found) or None

        try:
            wait_until("every card to hold what it has", still_over, seconds=15)
        except LocalClusterError as err:
            self.lost.append(str(err))
        evictions = "gpushare_extender_evictions_total"
        if not sum(self.seats.metric(seat, evictions) for seat in self.seats.names):
            self.lost.append(f"nobody counted {len(over)} cards that were given away twice")

    def _create(self, names: list[str]) -> None:
        def some(part: list[str]) -> None:
            with self.seats.cluster.api() as api:
                for name in part:
                    described = pod(name, POD_UNITS, **self._spec)
                    api.request("POST", "/api/v1/namespaces/default/pods", described)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(some, (names[start::4] for start in range(4))))

    def _create_one(self, described: dict[str, Any]) -> None:
        with self.seats.cluster.api() as api:
            api.request("POST", "/api/v1/namespaces/default/pods", described)

    def _count(self, names: list[str]) -> int:
        return sum(name in self.history.bound for name in names)

    def _wait_bound(self, names: list[str], count: int, seconds: float) -> None:
        def missing() -> str | None:
            bound = self._count(names)
            return None if bound >= count else f"{bound} are"

        wait_until(f"{count} pods to be bound", missing, seconds=seconds)

    def _delete_all(self) -> None:
        path = "/api/v1/namespaces/default/pods"
        with self.seats.cluster.api() as api:
            with suppress(ApiError):  # it may take longer than the answer is waited for
                api.request("DELETE", path, {"gracePeriodSeconds": 0})

            def left() -> str | None:
                try:
                    return f"{len(items)} are there" if (items := api.get(path)["items"]) else None
                except ApiError as err:
                    return str(err)

            wait_until("all pods to be gone", left, seconds=60, interval=0.3)


@contextmanager
def replicas(say: Callable[[str], None], count: int = 3) -> Iterator[Seats]:
    """Bring up paper nodes and ``count`` seats with a kube-scheduler and an extender each."""
    nodes = [paper_gpu_node(f"p{n}", CARDS, UNITS, unit_mib=1024) for n in range(NODES)]
    with fresh((), nodes, name=NAME, progress=say) as cluster:
        Gpushare(cluster).apply_access()
        seats = Seats.prepare(cluster, count, SCHEDULER_CONFIG)
        for seat in seats.names:
            seats.start_extender(seat)
        for seat in reversed(seats.names):
            seats.start_scheduler(seat)
        with retried_pods(cluster):
            yield seats


def main() -> int:
    """Run the parts; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--pods", type=int, default=500)
    parser.add_argument("--only", default="killed,paused,cut_off,rolling")
    flags = parser.parse_args()
    say = printer()
    with replicas(say) as seats, Cards(seats.cluster) as history:
        trial = Trial(seats, history, flags.pods, say)
        trial.wait_ready(*seats.names)
        events = {
            "killed": trial.killed,
            "paused": trial.paused,
            "cut_off": trial.cut_off,
            "rolling": trial.rolling,
        }
        for name in flags.only.split(","):
            try:
                if name == "paused":
                    trial.apart()
                trial.part(name.replace("_", "-"), events[name])
                if name == "paused":
                    trial.beside(1)
                    trial.beside(WAITING)
            except LocalClusterError as err:
                trial.lost.append(f"{name}: the trial broke: {err}")
                break
        say(f"LOST {len(trial.lost)}")
        return exit_code(say, trial.lost)


if __name__ == "__main__":
    sys.exit(run_command("replicas", main))
