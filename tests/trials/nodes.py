"""The matrix of real node setups: which cards each kind of container gets.

    python -m tests.trials.nodes [--binding late,early] [--runtime containerd-1.7]

A cell is right if its container got its own card and no other, or was refused before it ran; a
container that asks for no GPU memory must get no card. docs/dev/hardware.md summarizes the tables.
"""

import argparse
import sys
from typing import get_args

from localcluster.gpushare import Binding
from localcluster.imagebuild import gpushare_image
from localcluster.interrupts import run_command
from localcluster.specs import Runtime
from localcluster.toolkit import Setup
from tests.trials.matrix import matrix_cluster, setup_node, table, wrong
from tests.trials.output import exit_code, printer

BINDINGS: tuple[Binding, ...] = ("late", "early")


def main() -> int:
    """Run all cells; return the exit code."""
    flags = _flags()
    say = printer()
    bad, count = [], 0
    nodes = [setup_node(setup, flags.runtime) for setup in Setup]
    with matrix_cluster(gpushare_image(say), nodes, name="gpushare-nodes") as matrix:
        for binding in flags.binding.split(","):
            matrix.start_plugins(binding)
            endings = matrix.play(matrix.cells(binding))
            count += len(endings)
            say(f"{binding} binding, {len(endings)} cells")
            print(table(endings), flush=True)
            for cell, ending in endings.items():
                if ending.why:
                    print(f"  {cell.pod}: {ending.end}: {ending.why[:300]}")
            bad += [f"{binding}: {each}" for each in wrong(endings)]
    say(f"{count} cells, {len(bad)} WRONG")
    return exit_code(say, bad)


def _flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--binding", default=",".join(BINDINGS), help="which, with commas")
    parser.add_argument("--runtime", default="containerd-2", choices=get_args(Runtime))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(run_command("nodes", main))
