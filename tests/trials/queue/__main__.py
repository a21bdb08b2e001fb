"""Quotas hold and everybody gets a turn, on paper nodes, by real programs.

    python -m tests.trials.queue [--minutes 2] [--backlog 500] [--reserve 60] [--run 20]
                                 [--away 60] [--gated 500] [--seed TEXT]
                                 [--only quotas,fair,starvation,complaints,caught,away,off]

With two replicas of the extender and of kube-scheduler. *quotas*: pods and gangs of 20 namespaces
are created and ended at random for ``--minutes``, quotas change, and the programs that lead are
killed. *fair*: two namespaces with a backlog of ``--backlog`` pods each, of which one has begun
earlier. *starvation*: a gang of 60 % of all GPUs beside an endless stream of single pods that run
for up to ``--run`` seconds; reserveAfterSeconds is ``--reserve``. *complaints*: what other queues
are blamed for. *caught*: pods of all kinds of owners get the gate. *away*: policy, webhook,
extenders (for ``--away`` seconds) and the guard of the gate are missing in turn, while pods are
created all the time. *off*: ``--gated`` pods are released by `gates: false`, and by `gpushare
uninstall`.

A watch of all pods is recorded. Exit code 1 if a namespace was above its quota at a Binding, a pod
was rejected or evicted, a gang stayed in part, a GPU was overbooked, or a figure missed its limit.
"""

import argparse
import random
import sys
from typing import Final

from localcluster.interrupts import run_command
from tests.trials.output import exit_code, printer
from tests.trials.queue.away import Away
from tests.trials.queue.caught import Caught
from tests.trials.queue.complaints import Complaints
from tests.trials.queue.fair import Fair
from tests.trials.queue.off import Off
from tests.trials.queue.quotas import Quotas
from tests.trials.queue.stage import queue_stage
from tests.trials.queue.starvation import Starvation

PARTS: Final = "quotas,fair,starvation,complaints,caught,away,off"  # off removes gpushare


def main() -> int:
    """Run the parts; return the exit code."""
    flags = _flags()
    say = printer()
    say(f"seed {flags.seed}")
    rng = random.Random(flags.seed)
    with queue_stage(say) as stage:
        parts = {
            "quotas": Quotas(stage, flags.minutes * 60, rng).play,
            "fair": Fair(stage, flags.backlog, rng).play,
            "starvation": Starvation(stage, flags.reserve, flags.run, rng).play,
            "complaints": Complaints(stage).play,
            "caught": Caught(stage).play,
            "away": Away(stage, flags.away, rng).play,
            "off": Off(stage, flags.gated).play,
        }
        for name in flags.only.split(","):
            stage.play(name, parts[name])
        say(f"{len(stage.lost)} WRONG")
        return exit_code(say, stage.lost)


def _flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--minutes", type=float, default=2.0, help="of random creates and ends")
    parser.add_argument("--backlog", type=int, default=500, help="pods of each of two namespaces")
    parser.add_argument("--reserve", type=int, default=60, help="reserveAfterSeconds")
    parser.add_argument("--run", type=float, default=20.0, help="seconds of the longest single pod")
    parser.add_argument("--away", type=float, default=60.0, help="seconds without an extender")
    parser.add_argument("--gated", type=int, default=500, help="pods to release at the end")
    parser.add_argument("--only", default=PARTS, help="which parts, with commas")
    parser.add_argument("--seed", default=str(random.SystemRandom().randrange(10**6)))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(run_command("queue", main))
