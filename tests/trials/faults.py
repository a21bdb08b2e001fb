"""Fault trials: despite faults of the API server, the extender gives each card once.

    python -m tests.trials.faults [--pods 1000] [--restarts 5] [--seed TEXT]

They use a real API server behind a proxy, a real kube-scheduler and paper nodes. Each round creates
pods that fill all cards, under another fault; in another one the extender is killed at random while
``--pods`` pods are bound. In each, no card may be overbooked at any moment, no pod bound without
cards, all must be bound, and the ledger must equal a fresh count. Otherwise the exit code is 1.

An extender that is killed is started again at once, ``--restarts`` times while each kind of delay
keeps its last Binding on the way. How long it serves nothing is printed.
"""

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from localcluster.errors import LocalClusterError
from localcluster.gpushare import Gpushare
from localcluster.interrupts import run_command
from localcluster.wait import wait_until
from tests.cluster.bringup import TRIALS, with_extender_on_host
from tests.cluster.history import History
from tests.fakes.apiserver_proxy import Fault, Kind, binds, lists, reads_pod, watches
from tests.trials import restarts
from tests.trials.output import exit_code, printer
from tests.trials.stage import UNITS, Injected, Stage, small_pod, stage

NODES, CARDS = 10, 4
PER_POD = 5
ROUND_SECONDS = 90.0
LATE_SECONDS = 6.0  # twice what a write may last
BEYOND_SECONDS = 30.0  # a reservation whose pod is not bound is released long before
NODE = "f00"
KILL_SECONDS = (0.2, 2.5)
KILLS = 6


ROUNDS: dict[str, Sequence[Injected]] = {
    "nothing, to compare with": (),
    "binds answered 409, nothing done": (Injected(Kind.CONFLICT, binds),),
    "binds answered 429": (Injected(Kind.TOO_MANY, binds),),
    "binds answered 500, nothing done": (Injected(Kind.INTERNAL, binds),),
    "binds answered 503, nothing done": (Injected(Kind.UNAVAILABLE, binds),),
    "binds hang": (Injected(Kind.HANG, binds),),
    "binds cut on the way there": (Injected(Kind.RESET, binds),),
    "binds done, answer lost": (Injected(Kind.LOST, binds),),
    "binds arrive after their deadline": (Injected(Kind.LATE, binds, seconds=LATE_SECONDS),),
    "binds lost, then reads fail": (
        Injected(Kind.LOST, binds, 10),
        Injected(Kind.RESET, binds, 10),
        Injected(Kind.INTERNAL, reads_pod, 10),
        Injected(Kind.TOO_MANY, reads_pod, 5),
        Injected(Kind.HANG, reads_pod, 5),
    ),
    "watch ends with 410": (Injected(Kind.WATCH_ERROR, watches, 3),),
    "watch is refused with 410": (
        Injected(Kind.WATCH_CUT, watches, 3),
        Injected(Kind.GONE, watches, 3),
    ),
    "watch is cut in a line": (Injected(Kind.WATCH_CUT, watches, 10),),
    "watch goes silent": (Injected(Kind.WATCH_SILENT, watches, 1),),
    "watch and list are refused": (
        Injected(Kind.WATCH_ERROR, watches, 2),
        Injected(Kind.TOO_MANY, lists, 2),
        Injected(Kind.INTERNAL, lists, 1),
        Injected(Kind.UNAVAILABLE, lists, 1),
        Injected(Kind.INTERNAL, watches, 2),
        Injected(Kind.TOO_MANY, watches, 2),
    ),
}


@dataclass
class Trial:
    """Counts of the trial; ``wrong`` must stay empty."""

    stage: Stage
    say: Callable[[str], None]
    wrong: list[str] = field(default_factory=list)
    rounds: int = 0
    pods: int = 0
    met: int = 0

    def play(self, name: str, faults: Sequence[Injected]) -> None:
        """Fill all cards under these faults."""
        begun, stage = time.monotonic(), self.stage
        made = stage.inject(faults)
        count = stage.pods_that_fit(PER_POD)
        stage.create(f"r{self.rounds}", count, PER_POD)
        took = self.judge(name, count, begun)
        stage.proxy.heal()
        self.rounds += 1
        self.met += sum(each.met for each in made)
        self.say(f"{took:5.1f} s  {name}: {count} pods{_met(made)}")

    def judge(self, name: str, count: int, begun: float) -> float:
        """Wait until all are bound and counted, note what was wrong; return how long it took."""
        self.pods += count
        took = ROUND_SECONDS
        try:
            self.stage.wait_bound(count, seconds=ROUND_SECONDS)
            took = time.monotonic() - begun
            self.stage.wait_counted(seconds=ROUND_SECONDS)
        except LocalClusterError as err:
            self.wrong.append(f"{name}: {err}")
        self.wrong += [f"{name}: {each}" for each in self.stage.judge()]
        differences = self.stage.metric("gpushare_ledger_differences_total")
        if differences:
            self.wrong.append(f"{name}: {differences:.0f} shares differ from a fresh count")
        self.stage.proxy.heal()
        self.stage.clear()
        return took

    def kill_while_binding(self, count: int, rng: random.Random) -> None:
        """Create pods, and kill the extender at random until all are bound."""
        begun, stage, seconds = time.monotonic(), self.stage, list[float]()
        units = UNITS * len(stage.sizes) // count
        name = f"extender killed, {units} units each"

        def more_than(before: int) -> str | None:
            found = stage.bound()
            return None if found > before or found == count else f"{found} are"

        with ThreadPoolExecutor(1) as pool:
            creating = pool.submit(stage.create, "k", count, units)
            while len(seconds) < KILLS:
                before = stage.bound()
                wait_until(
                    "the next pods to be bound", partial(more_than, before), seconds=ROUND_SECONDS
                )
                time.sleep(rng.uniform(*KILL_SECONDS))
                if stage.bound() == count:
                    break
                killed_at = time.monotonic()
                restarts.restart(stage)
                seconds.append(restarts.wait_served(stage, killed_at))
            creating.result()
        took = self.judge(name, count, begun)
        self.say(f"{took:5.1f} s  {name}: {count} pods, {_kills(seconds)}")

    def kill_during_bindings(self, times: int) -> None:
        """Kill the extender while its last Binding is on the way: it lands after the restart."""
        for delay in restarts.DELAYS:
            begun, seconds = time.monotonic(), list[float]()
            name = f"extender killed, its Binding is delayed by {delay or 'nothing'}"
            for _ in range(times):
                took, wrong = restarts.kill_during_a_binding(self.stage, NODE, CARDS, delay)
                seconds.append(took)
                self.wrong += [f"{name}: {each}" for each in wrong]
            self.say(f"{time.monotonic() - begun:5.1f} s  {name}: {_kills(seconds)}")

    def write_beyond_all_limits(self) -> None:
        """Let a write arrive long after its reservation was released: it is only counted.

        kube-scheduler would retry the pod and keep the reservation, so another scheduler owns it.
        """
        stage, begun = self.stage, time.monotonic()
        for name in ("late", "later"):
            stage.create_one(small_pod(name, UNITS, schedulerName="nobody"))
        stage.proxy.fault(Kind.LATE, binds, seconds=BEYOND_SECONDS)
        said = stage.bind_by_hand("late", NODE)
        if "not known yet" not in said:
            self.wrong.append(f"late write: the answer was {said!r}")
        stage.wait_counted(seconds=BEYOND_SECONDS)
        count = len(stage.sizes)
        stage.create("fill", count, UNITS)
        stage.wait_bound(count, seconds=ROUND_SECONDS)
        counted = stage.metric("gpushare_over_cards_total")
        wait_until(
            "the late write to land and to be counted",
            lambda: (
                None
                if stage.was_bound("late") and stage.metric("gpushare_over_cards_total") > counted
                else "not yet"
            ),
            seconds=BEYOND_SECONDS + 10,
        )
        refused = stage.bind_by_hand("later", NODE)
        if "does not fit" not in refused:
            self.wrong.append(f"a card that holds too much took another pod: {refused!r}")
        over = stage.judge()
        if len(over) != 1:
            self.wrong.append(f"one write was late, and these moments were wrong: {over}")
        stage.clear()
        took = time.monotonic() - begun
        self.say(f"{took:5.1f} s  a write that arrives after all limits: 1 card over, counted")


def main() -> int:
    """Run the trial; return the exit code."""
    flags = _flags()
    say = printer()
    say(f"seed {flags.seed}")
    rng = random.Random(flags.seed)
    with with_extender_on_host(name=TRIALS, progress=say) as cluster:
        gpushare = Gpushare(cluster)
        gpushare.install()
        with (
            tempfile.TemporaryDirectory() as folder,
            History(cluster) as history,
            stage(gpushare, history, Path(folder), nodes=NODES, cards=CARDS) as made,
        ):
            trial = Trial(made, say)
            try:
                trial.kill_during_bindings(flags.restarts)
                trial.kill_while_binding(_that_fit(made, flags.pods), rng)
                trial.write_beyond_all_limits()
                for name, faults in ROUNDS.items():
                    trial.play(name, faults)
            except (LocalClusterError, AssertionError) as err:
                trial.wrong.append(f"the trial broke: {err}")
    say(f"{trial.rounds} rounds, {trial.pods} pods, {trial.met} faults, {len(trial.wrong)} WRONG")
    return exit_code(say, trial.wrong)


def _that_fit(made: Stage, wanted: int) -> int:
    """Return the largest number of equal pods up to ``wanted`` that fill all cards."""
    total = UNITS * len(made.sizes)
    return max(total // units for units in range(1, UNITS + 1) if total // units <= wanted)


def _kills(seconds: Sequence[float]) -> str:
    middle, longest = statistics.median(seconds or [0.0]), max(seconds, default=0.0)
    return f"{len(seconds)} kills, serves again after {middle:.2f} s, at most {longest:.2f} s"


def _met(faults: Sequence[Fault]) -> str:
    return "".join(f", {each.met} x {each.kind}" for each in faults)


def _flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--pods", type=int, default=1000, help="bound while the extender is killed")
    parser.add_argument("--restarts", type=int, default=5, help="of each kind of late Binding")
    parser.add_argument("--seed", default=str(random.SystemRandom().randrange(10**6)))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(run_command("faults", main))
