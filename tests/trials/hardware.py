"""The matrix of node setups on this machine's driver and cards, compared with the stand-in.

    python -m tests.trials.hardware [--driver-root /] [--setups legacy,operator]

Needs NVIDIA's driver, root and Linux. Uses the machine's NVIDIA container toolkit if complete, or
the one that the local cluster builds. No container uses a card: the cells check device nodes.
Prints a report to paste.
"""

import argparse
import platform
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import pynvml  # noqa: TID251 - asked for the version, which the plugin has no use for

from deviceplugin.driver.interface import PhysicalCard
from deviceplugin.driver.nvml import Nvml
from deviceplugin.errors import DriverError
from localcluster.gpushare import Binding
from localcluster.imagebuild import gpushare_image
from localcluster.interrupts import run_command
from localcluster.nvml import CardSpec
from localcluster.specs import NodeSpec
from localcluster.toolkit import Setup, installed
from tests.trials.cells import Cell, Ending
from tests.trials.matrix import matrix_cluster, table, wrong
from tests.trials.output import exit_code, printer

SETUPS: Final = (Setup.LEGACY, Setup.AUTO, Setup.OPERATOR, Setup.CDI)
BINDINGS: Final[tuple[Binding, ...]] = ("late", "early")
_NEEDS: Final = (
    "Nothing was tried. This needs NVIDIA's driver (libnvidia-ml.so.1 where programs find it, "
    "/dev/nvidia0) with a card that is not in MIG mode, on Linux, as root"
)


def main() -> int:
    """Run the cells on nodes of both kinds; return the exit code."""
    flags = _flags()
    say = printer()
    try:
        version, cards = _machine()
    except DriverError as problem:
        print(f"{problem}\n{_NEEDS}")
        return 1
    if not cards:
        print(f"the driver {version} shows no card that can be shared\n{_NEEDS}")
        return 1
    own = installed()
    say(f"driver {version} below {flags.driver_root}, kernel {platform.release()}")
    say(f"toolkit: {f'installed in {own[0]}' if own else 'none installed, the built one is used'}")
    for card in cards:
        say(f"card {card.minor}: {card.uuid}, {card.model}, {card.mem_mib} MiB")
    if len(cards) == 1:
        say("with one card, its card and all cards are the same: the table cannot tell them apart")
    nodes = node_pairs([Setup(each) for each in flags.setups.split(",")], cards, flags.driver_root)
    bad: list[str] = []
    with matrix_cluster(gpushare_image(say), nodes, name="gpushare-hardware") as matrix:
        for binding in BINDINGS:
            matrix.start_plugins(binding)
            endings = matrix.play(matrix.cells(binding))
            real = {cell: end for cell, end in endings.items() if not _is_twin(cell)}
            say(f"{binding} binding on the real driver, {len(real)} cells")
            print(table(real), flush=True)
            bad += [f"{binding}: {each}" for each in (*wrong(real), *differences(endings))]
    say(f"{len(bad)} WRONG or different from the stand-in")
    return exit_code(say, bad)


def _machine() -> tuple[str, list[CardSpec]]:
    """Return the driver's version and its cards that can be shared."""
    driver = Nvml()
    found = [driver.card(position) for position in range(driver.count())]
    version = str(pynvml.nvmlSystemGetDriverVersion())
    return version, [
        CardSpec(each.uuid, each.model, each.memory_mib, minor=each.minor)
        for each in found
        if isinstance(each, PhysicalCard) and not each.is_mig
    ]


def node_pairs(setups: list[Setup], cards: list[CardSpec], root: Path) -> list[NodeSpec]:
    """Return two nodes of each setup: one with the real driver, and its twin with the stand-in."""
    found = []
    for number, setup in enumerate(setups):
        name = setup.value.replace(".", "-")
        real = NodeSpec(name, {}, tuple(cards), setup=setup, driver=root)
        twins = (
            replace(card, uuid=f"GPU-{number:08x}-0000-4000-8000-{card.minor or 0:012x}")
            for card in cards
        )
        found += [real, replace(real, name=_twin(name), cards=tuple(twins), driver=None)]
    return found


def differences(endings: Mapping[Cell, Ending]) -> list[str]:
    """Return which cells of the real driver ended in another way than their twins."""
    found = []
    for cell, ending in endings.items():
        twin = endings.get(replace(cell, node=_twin(cell.node)))
        if twin is not None and twin.end != ending.end:
            found.append(f"{cell.pod}: {ending.end} {ending.why}, on the stand-in {twin.end}")
    return found


def _twin(node: str) -> str:
    return f"{node}-twin"


def _is_twin(cell: Cell) -> bool:
    return cell.node.endswith("-twin")


def _flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--driver-root", default=Path("/"), type=Path, help="where the driver is")
    parser.add_argument("--setups", default=",".join(SETUPS), help="which, with commas")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(run_command("hardware", main))
