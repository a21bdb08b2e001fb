"""Containers of gangs get the GPUs that were decided for each member, on real kubelets.

    python -m tests.trials.gang_containers [--times 20] [--seed TEXT]

Each time a gang of 4 pods with 2 GPUs each is created, and deleted once all containers run. Every
other gang begins with the scheduling gate, half of the gangs have equal members, and amounts are
random. A time is right if each container has the GPUs of its pod's annotation, in its environment
and as devices, the extender counts exactly these, no GPU was overbooked at any moment, and no pod
was bound twice, without GPUs, or evicted. The full trial is ``--times 50``.

Exit code 1 if a time was not right.
"""

import argparse
import random
import sys
import time
from statistics import median
from typing import Final

from localcluster.errors import LocalClusterError
from localcluster.gpushare import CARD_MIB, Gpushare, gpu_node
from localcluster.interrupts import run_command
from localcluster.wait import wait_until
from localcluster.workloads import Workloads
from tests.cluster.bringup import fresh, own_network
from tests.cluster.expect import sums_are_right
from tests.cluster.gangs import containers_have_what_was_decided, gang_on_kubelets
from tests.cluster.gated import let_extender_release
from tests.trials.gang_history import GangHistory
from tests.trials.output import exit_code, printer

NAME: Final = "gpushare-gang-containers"
LATE, EARLY = ("k1", "k2"), ("k3",)
NODES: Final = (*LATE, *EARLY)
CARDS: Final = 4  # of each node: those of two nodes are as many as a gang uses at most
MEMBERS: Final = 4
MEMBER_CARDS: Final = 2
LEAST_UNITS: Final = 100


def main() -> int:
    """Run the gangs one after the other; return the exit code."""
    flags = _flags()
    say = printer()
    say(f"seed {flags.seed}")
    rng = random.Random(flags.seed)
    nodes = [gpu_node(name, CARDS, cdi=name in LATE) for name in NODES]
    sizes = {card.uuid: card.mem_mib for node in nodes for card in node.cards}
    with own_network(), fresh(nodes, name=NAME, progress=say) as cluster:
        gpushare = Gpushare(cluster)
        gpushare.install()
        let_extender_release(cluster)
        with GangHistory(cluster, sizes) as history:
            trial = Trial(gpushare, history)
            try:
                for number in range(flags.times):
                    problems = trial.play(f"gang-{number}", _units(rng), is_gated=number % 2 == 1)
                    say(f"gang {number}: {'WRONG' if problems else 'right'}")
                    trial.wrong += problems
                    trial.right += not problems
            except LocalClusterError as problem:
                trial.wrong.append(f"broke off: {problem}")
        say(
            f"{trial.right} of {flags.times} gangs of {MEMBERS} x {MEMBER_CARDS} GPUs right; "
            f"all containers ran after {_figures(trial.starts)}, a time took "
            f"{_figures(trial.rounds)}"
        )
        return exit_code(say, trial.wrong)


class Trial:
    """Gangs on the same nodes; ``wrong`` must stay empty. Times are in seconds."""

    def __init__(self, gpushare: Gpushare, history: GangHistory) -> None:
        self._gpushare, self._history = gpushare, history
        self._pods = Workloads(gpushare.cluster)
        self.right = 0
        self.wrong: list[str] = []
        self.starts: list[float] = []
        self.rounds: list[float] = []

    def play(self, name: str, units: list[int], *, is_gated: bool) -> list[str]:
        """Create a gang, judge its containers and delete it; return what was wrong.

        Raises LocalClusterError if it cannot be deleted.
        """
        described = gang_on_kubelets(name, units, cards=MEMBER_CARDS, is_gated=is_gated)
        found, begun = [], time.monotonic()
        try:
            self._pods.create(*described)
            self._pods.wait_running(*(each["metadata"]["name"] for each in described))
            self.starts.append(time.monotonic() - begun)
            containers_have_what_was_decided(self._pods, described)
            sums_are_right(self._gpushare, self._pods)
        except (LocalClusterError, AssertionError) as problem:
            found.append(f"{name}, {units} units: {problem}")
        self._clear(name)
        self.rounds.append(time.monotonic() - begun)
        return [*found, *(f"{name}: {each}" for each in self._history.judge())]

    def _clear(self, name: str) -> None:
        """Delete the gang, and wait until the watch has shown it."""
        self._history.finish(name)
        self._pods.delete_all()

        def some() -> str | None:
            count = self._history.pods_left()
            return f"{count} pods" if count else None

        wait_until("the watch to show no pod", some, seconds=20, interval=0.05)


def _units(rng: random.Random) -> list[int]:
    """Return amounts by member; the largest leave a GPU no room for another member."""
    if rng.random() < 0.5:
        return [rng.randint(LEAST_UNITS, CARD_MIB)] * MEMBERS
    return [rng.randint(LEAST_UNITS, CARD_MIB) for _ in range(MEMBERS)]


def _figures(seconds: list[float]) -> str:
    if not seconds:
        return "no time"
    return f"{median(seconds):.1f} s (at most {max(seconds):.1f} s)"


def _flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--times", type=int, default=20, help="how many gangs")
    parser.add_argument("--seed", default=str(random.SystemRandom().randrange(10**6)))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(run_command("gang_containers", main))
