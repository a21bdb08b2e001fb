"""Victims of random small states, compared with all sets of pods that are permitted.

    python -m tests.trials.victims [--states 50000] [--seed 1]

Pods and gangs need room on at most 3 nodes that up to 12 pods use. Victims have to be found if any
help, their highest priority has to be the lowest possible one, and each has to be needed. Exit code
1 for a wrong answer; its seed is printed.
"""

import argparse
import random
import sys
import time
from collections import Counter
from typing import Final

from tests.unit.gpushare.preemption.states import Drawing
from tests.unit.gpushare.preemption.trying import answer

MOST_PODS: Final = 12
SAY_SECONDS: Final = 30.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="victims", description=__doc__)
    parser.add_argument("--states", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    counts, said = Counter[str](), time.monotonic()
    for number in range(given.states):
        seed = given.seed + number
        try:
            counts[answer(Drawing(random.Random(seed), MOST_PODS).state())] += 1
        except AssertionError:
            counts["wrong"] += 1
            print(f"wrong: --seed {seed} --states 1")
        if time.monotonic() - said > SAY_SECONDS:
            said = time.monotonic()
            print(f"{number + 1} of {given.states}: {dict(counts)}", flush=True)
    print(dict(counts))
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
