"""`make hardware` reports a missing driver, and where the real one differs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from localcluster import nvml
from localcluster.nvml import CardSpec, write_state
from localcluster.toolkit import Setup
from tests.trials.cells import Cell, End, Ending, Kind
from tests.trials.hardware import differences, node_pairs

ROOT = Path(__file__).parents[3]
NOT_LOADED = 9  # NVML_ERROR_DRIVER_NOT_LOADED
CARD = CardSpec("GPU-a", minor=2)


@pytest.mark.parametrize(
    ("init", "cards", "said"),
    [
        (NOT_LOADED, [CARD], "Driver Not Loaded"),
        (0, [], "shows no card that can be shared"),
        (0, [CardSpec("GPU-a", mig=True)], "shows no card that can be shared"),
    ],
)
def test_without_a_card_it_fails_with_what_it_needs(
    library: Path, tmp_path: Path, init: int, cards: list[CardSpec], said: str
) -> None:
    write_state(tmp_path / "state", cards, init=init)
    done = subprocess.run(
        [sys.executable, "-m", "tests.trials.hardware"],
        cwd=ROOT,
        env={**os.environ, **nvml.environment(library, tmp_path / "state")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert said in done.stdout
    assert "This needs NVIDIA's driver" in done.stdout
    assert "Traceback" not in done.stderr


def test_each_node_with_the_real_driver_has_a_twin_with_as_many_cards() -> None:
    real, twin = node_pairs([Setup.OPERATOR], [CARD], Path("/"))
    assert (real.driver, twin.driver) == (Path("/"), None)
    assert real.setup == twin.setup == Setup.OPERATOR
    assert real.cards == (CARD,)
    assert [card.minor for card in twin.cards] == [2]
    assert twin.cards[0].uuid != CARD.uuid


def test_a_cell_that_ends_otherwise_than_on_the_stand_in_is_told() -> None:
    real, twin = (Cell(node, Kind.CUDA, "nvidia") for node in ("legacy", "legacy-twin"))
    assert differences({real: Ending(End.OWN), twin: Ending(End.OWN)}) == []
    [told] = differences({real: Ending(End.REFUSED, "no such device"), twin: Ending(End.OWN)})
    assert told == f"{real.pod}: refused no such device, on the stand-in its card"
