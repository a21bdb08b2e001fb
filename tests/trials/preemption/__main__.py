"""Pods are evicted for more important pods and gangs, on paper nodes, by real programs.

    python -m tests.trials.preemption [--times 10] [--freed 20] [--minutes 2] [--waiting 200]
                                      [--only kills,freed,beside,wake] [--seed TEXT]

With two replicas of the extender and of kube-scheduler. *kills*: the replica that decides is killed
between two of the 4 to 16 evictions for a pod or gang, ``--times`` times. *freed*: others are
created while the victim of a pod ends, ``--freed`` times. *beside*: kube-scheduler preempts beside
the extender for ``--minutes``, with random pods and gangs. *wake*: ``--waiting`` gated pods wait
while one GPU after the other becomes free. The full trial is ``--times 50 --freed 100 --minutes 10
--waiting 500``.

A watch of all pods is recorded. Exit code 1 if a pod was evicted that was not needed, or not of a
lower priority; freed room went to another pod; both evicted for one pod at a time; a gang was left
with too few members; other pods than those that fit were released; room stayed claimed, or a GPU
was overbooked.
"""

import argparse
import random
import sys
from typing import Final

from localcluster.interrupts import run_command
from tests.trials.output import exit_code, printer
from tests.trials.preemption.beside import Beside
from tests.trials.preemption.freed import Freed
from tests.trials.preemption.kills import Kills
from tests.trials.preemption.stage import preemption_stage
from tests.trials.preemption.wake import Wake

PARTS: Final = "kills,freed,beside,wake"


def main() -> int:
    """Run the parts; return the exit code."""
    flags = _flags()
    say = printer()
    say(f"seed {flags.seed}")
    rng = random.Random(flags.seed)
    with preemption_stage(say) as stage:
        parts = {
            "kills": Kills(stage, flags.times, rng).play,
            "freed": Freed(stage, flags.freed, rng).play,
            "beside": Beside(stage, flags.minutes, rng).play,
            "wake": Wake(stage, flags.waiting, rng).play,
        }
        for name in flags.only.split(","):
            stage.play(name, parts[name])
        say(f"{len(stage.lost)} WRONG")
        return exit_code(say, stage.lost)


def _flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--times", type=int, default=10, help="that the leader is killed")
    parser.add_argument("--freed", type=int, default=20, help="times that room is freed")
    parser.add_argument("--minutes", type=float, default=2.0, help="of both beside each other")
    parser.add_argument("--waiting", type=int, default=200, help="gated pods")
    parser.add_argument("--only", default=PARTS, help="which parts, with commas")
    parser.add_argument("--seed", default=str(random.SystemRandom().randrange(10**6)))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(run_command("preemption", main))
