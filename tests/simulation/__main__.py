"""Simulate the extender: thousands of runs, the replay of one, or known defects.

    python -m tests.simulation [--runs 5000] [--seconds 180] [--first SEED]
    python -m tests.simulation --seed SEED
    python -m tests.simulation --mutants

The seed of a run determines its cluster. Exit code 1 after a violation or an uncaught defect.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait

from tests.simulation.mutants import MUTANTS, caught
from tests.simulation.run import Result, simulate

FIRST_SEED = 10_001  # `make test` has those from 1 on


def main() -> int:
    """Run the simulation; return the exit code."""
    flags = _flags()
    if flags.seed is not None:
        return replay(flags.seed)
    if flags.mutants:
        return hunt()
    return many(flags.first, flags.runs, flags.seconds)


def replay(seed: int) -> int:
    """Print everything that happens in one run."""
    result = simulate(seed, traced=True)
    print("\n".join(result.trace))
    return 1 if result.violations else 0


def many(first: int, runs: int, seconds: float) -> int:
    """Run seeds from ``first`` on, with a process per core, until ``runs`` or ``seconds`` end."""
    began, done, bindings, failed = time.monotonic(), 0, 0, 0
    for result in _results(iter(range(first, first + runs)), began + seconds):
        done, bindings = done + 1, bindings + result.bindings
        if result.violations:
            failed += 1
            print(told(result), flush=True)
    took = time.monotonic() - began
    print(f"{done} runs in {took:.0f} s, {bindings} bindings, {failed} runs with a violation")
    return 1 if failed else 0


def told(result: Result) -> str:
    """Return the violations of a run, and how to replay it."""
    lines = (f"    {violation}" for violation in result.violations)
    command = f"  replay: .venv/bin/python -m tests.simulation --seed {result.seed}"
    return "\n".join((f"seed {result.seed}:", *lines, command))


def hunt() -> int:
    """Put each known defect into the code, and print how many runs catch it."""
    missed = 0
    for mutant in MUTANTS:
        found = caught(mutant)
        missed += found is None
        text = "NOT CAUGHT" if found is None else f"run {found[0]}: {found[1]}"
        print(f"{mutant}\n    {text}", flush=True)
    print(f"{len(MUTANTS) - missed} of {len(MUTANTS)} defects caught")
    return 1 if missed else 0


def _results(seeds: Iterator[int], until: float) -> Iterator[Result]:
    """Yield results as runs end; no run begins after ``until``."""
    workers = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(workers) as pool:
        running: set[Future[Result]] = set()
        while True:
            while len(running) < 2 * workers and time.monotonic() < until:
                seed = next(seeds, None)
                if seed is None:
                    break
                running.add(pool.submit(simulate, seed))
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            yield from (each.result() for each in done)


def _flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--runs", type=int, default=5000)
    parser.add_argument("--seconds", type=float, default=180.0, help="begin no run after that")
    parser.add_argument("--first", type=int, default=FIRST_SEED, help="the first run's seed")
    parser.add_argument("--seed", type=int, help="replay this run and print all that happens")
    parser.add_argument("--mutants", action="store_true", help="must known defects be caught?")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
