"""Run the benchmarks one after the other and print one table of all figures.

python -m bench [--all]
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from bench import figures
from localcluster.interrupts import run_command

_EACH: Final = (
    "bench.filter",
    "bench.binds",
    "bench.ledger",
    "bench.cache",
    "bench.pauses",
    "bench.planning",
    "bench.victims",
    "bench.waiting_gangs",
    "bench.page",
    "bench.deviceplugin",
    "bench.attacks",
)
USUAL: Final = (*_EACH, "bench.gangs", "bench.throughput --rows exact,small --rounds 3")
ALL: Final = (
    *_EACH,
    "bench.gangs",
    "bench.admissions",
    "bench.throughput",
    "bench.throughput --settings",
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--all", action="store_true", help="every row of throughput too")
    commands = ALL if parser.parse_args().all else USUAL
    with tempfile.NamedTemporaryFile(prefix="gpushare-bench-") as file:
        failed = [command for command in commands if run(command, Path(file.name))]
        print(f"\n{figures.table(figures.noted(Path(file.name)))}")
    for command in failed:
        print(f"failed: python -m {command}", file=sys.stderr)
    return 1 if failed else 0


def run(command: str, file: Path) -> int:
    """Run a program that keeps its figures in ``file``, and return its exit status."""
    print(f"\npython -m {command}", flush=True)
    argv = [sys.executable, "-m", *command.split()]
    process = subprocess.Popen(argv, env=os.environ | {figures.VARIABLE: str(file)})
    try:
        return process.wait()
    finally:
        if process.poll() is None:  # interrupted: it may have a cluster to take down
            process.terminate()
            process.wait()


if __name__ == "__main__":
    sys.exit(run_command("bench", main))
