"""Gangs are placed as a whole while the extender and kube-scheduler are killed.

    python -m tests.trials.gangs [--gangs 24] [--times 1] [--pairs 10] [--only kills,writes,pairs]
                                 [--seed TEXT]

On paper nodes, with two replicas of the extender and of kube-scheduler; half of the gangs begin
with the scheduling gate. *kills*: the replica that decides and kube-scheduler are killed at random,
while ``--gangs`` gangs pass through 50 nodes. *writes*: the leader is killed at each write by which
a gang of 8 is released and bound, ``--times`` times. *pairs*: of two gangs of 60 % of all GPUs
each, created member by member in turn, one becomes whole and nothing is kept for the other,
``--pairs`` times. The full trial is ``--gangs 200 --times 20 --pairs 100``.

A watch of all pods is recorded. Exit code 1 if a gang stays partial or does not become whole, a GPU
was overbooked, a pod bound without GPUs, or a pod evicted.
"""

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Final

from localcluster.interrupts import run_command
from localcluster.wait import wait_until
from tests.cluster.gangs import UNITS
from tests.trials.gang_kills import RandomKills, random_gangs
from tests.trials.gang_stage import CARDS, NODES, Described, GangStage, behind_proxy, gang_stage
from tests.trials.gang_writes import KillsAtWrites
from tests.trials.output import exit_code, printer

PARTS: Final = "kills,writes,pairs"
KILLING_SECONDS: Final = 15.0  # at most for one gang
KEPT_SECONDS: Final = 1.0  # after the first gang is whole
WHOLE_SECONDS: Final = 30.0
SIXTY_PERCENT: Final = NODES * CARDS * 6 // 10
# The shortest that the extender accepts: the trial waits for the end of a lease at each write.
ELECTION: Final = {"leaseSeconds": 4.0, "renewSeconds": 2.0, "retrySeconds": 0.2}


def main() -> int:
    """Run the parts; return the exit code."""
    flags = _flags()
    say = printer()
    say(f"seed {flags.seed}")
    parts = flags.only.split(",")
    rng = random.Random(flags.seed)
    with gang_stage(say) as stage:
        if "kills" in parts:
            gangs = random_gangs(flags.gangs, rng)
            kills = RandomKills(stage, gangs, rng, KILLING_SECONDS * len(gangs))
            stage.play("random kills", kills.play)
        if "pairs" in parts:
            for is_gated in (False, True):
                name = f"pairs, {_kind(is_gated)}"
                stage.play(name, Pairs(stage, flags.pairs // 2, is_gated=is_gated).play)
        if "writes" in parts:
            with (
                tempfile.TemporaryDirectory() as folder,
                behind_proxy(stage, Path(folder), **ELECTION) as proxy,
            ):
                at_writes = KillsAtWrites(stage, proxy, flags.times)
                stage.play("kills at writes", at_writes.play)
        say(f"{len(stage.lost)} WRONG")
        return exit_code(say, stage.lost)


class Pairs:
    """Two gangs of which only one has room, again and again."""

    def __init__(self, stage: GangStage, times: int, *, is_gated: bool) -> None:
        self._stage, self._times, self._is_gated = stage, times, is_gated

    def play(self) -> str:
        """Create and judge all pairs; return the figures."""
        took = [self._pair(number) for number in range(self._times)]
        return (
            f"{self._times} x 2 gangs of {SIXTY_PERCENT} on {NODES * CARDS} GPUs; nothing was kept "
            f"for the other {median(took):.1f} s after one was whole, at most {max(took):.1f} s"
        )

    def _pair(self, number: int) -> float:
        """Return the seconds until nothing is kept for the second gang."""
        stage = self._stage
        pair = [
            Described(
                f"{name}-{_kind(self._is_gated)}-{number}",
                SIXTY_PERCENT,
                SIXTY_PERCENT,
                UNITS,
                is_gated=self._is_gated,
            )
            for name in ("x", "y")
        ]
        names = [each.name for each in pair]
        stage.create(*pair)
        whole = stage.wait_whole(*names, seconds=WHOLE_SECONDS)
        whole_at = stage.history.gang(whole).whole_at
        (other,) = {*names} - {whole}

        def kept() -> str | None:
            found = stage.slots(other)
            return f"{found} slots" if found else None

        left = whole_at + KEPT_SECONDS - time.monotonic()
        wait_until(f"nothing to be kept for {other}", kept, seconds=left)
        took = time.monotonic() - whole_at
        if stage.history.gang(other).most:
            stage.lost.append(f"{whole} is whole, and members of {other} were bound")
        stage.finish(*names)
        return took


def _kind(is_gated: bool) -> str:
    return "gated" if is_gated else "ungated"


def _flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "--gangs", type=int, default=24, help="that pass while processes are killed"
    )
    parser.add_argument("--times", type=int, default=1, help="a kill at each write")
    parser.add_argument("--pairs", type=int, default=10, help="of gangs that exclude each other")
    parser.add_argument("--only", default=PARTS, help="which parts, with commas")
    parser.add_argument("--seed", default=str(random.SystemRandom().randrange(10**6)))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(run_command("gangs", main))
