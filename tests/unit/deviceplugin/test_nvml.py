"""The real pynvml on the C stand-in for the driver's library."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import msgspec
import pytest

from localcluster.errors import HostError
from localcluster.nvml import CardSpec, build, environment, write_state

# Asks the backend once for each line on standard input, and answers with a line of JSON.
PROGRAM = """
import sys
import msgspec
from deviceplugin.errors import DriverError
from deviceplugin.nvml import Nvml

nvml = Nvml()
for _ in sys.stdin:
    try:
        answer = {"cards": nvml.cards()}
    except DriverError as err:
        answer = {"error": str(err)}
    sys.stdout.write(msgspec.json.encode(answer).decode() + chr(10))
    sys.stdout.flush()
"""
CARD = CardSpec("GPU-a", "NVIDIA A100 80GB", 81_920, reserved_mib=500)
SMALL = CardSpec("GPU-b", mem_mib=16_276)


class Machine:
    """A program that sees the stand-in's cards; ``ask`` is what the backend shows now."""

    def __init__(self, library: Path, state: Path) -> None:
        self.state = state
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment(library, state)},
        )

    def ask(self) -> dict:
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return msgspec.json.decode(self._process.stdout.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()
        assert self._process.returncode == 0


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    try:
        return build(tmp_path_factory.mktemp("nvml"))
    except HostError as err:
        pytest.skip(str(err))


@pytest.fixture
def machine(library: Path, tmp_path: Path) -> Iterator[Machine]:
    write_state(tmp_path / "state", [CARD, SMALL])
    with Machine(library, tmp_path / "state") as made:
        yield made


def test_shows_every_card_with_what_the_driver_keeps(machine: Machine) -> None:
    assert machine.ask()["cards"] == [
        {
            "uuid": "GPU-a",
            "minor": 0,
            "model": "NVIDIA A100 80GB",
            "memory_mib": 81_920,
            "reserved_mib": 500,
            "is_mig": False,
        },
        {
            "uuid": "GPU-b",
            "minor": 1,
            "model": "NVIDIA Stand-in",
            "memory_mib": 16_276,
            "reserved_mib": 0,
            "is_mig": False,
        },
    ]


def test_a_lost_card_is_named_and_leaves_the_others_alone(machine: Machine) -> None:
    machine.ask()
    write_state(machine.state, [CardSpec("GPU-a", error=15), SMALL])
    lost, other = machine.ask()["cards"]
    assert lost == {"position": 0, "uuid": "GPU-a", "why": "GPU is lost"}
    assert other["uuid"] == "GPU-b"
    write_state(machine.state, [CARD, SMALL])
    assert machine.ask()["cards"][0]["memory_mib"] == 81_920


def test_a_card_that_cannot_even_be_found_keeps_its_place(machine: Machine) -> None:
    write_state(machine.state, [CARD, CardSpec("GPU-b", handle_error=999)])
    assert machine.ask()["cards"][1] == {"position": 1, "uuid": "", "why": "Unknown Error"}


def test_an_older_driver_does_not_tell_what_it_keeps(machine: Machine) -> None:
    write_state(machine.state, [CardSpec("GPU-a", memory_v2=False, mig=True)])
    (card,) = machine.ask()["cards"]
    assert card["reserved_mib"] is None
    assert card["memory_mib"] == 16_276
    assert card["is_mig"]


@pytest.mark.parametrize(
    ("code", "text"), [(9, "Driver Not Loaded"), (18, "mismatch"), (999, "Unknown")]
)
def test_a_driver_that_fails_is_a_state_and_recovers(
    machine: Machine, code: int, text: str
) -> None:
    for _ in range(2):
        write_state(machine.state, [CARD], init=code)
        assert text in machine.ask()["error"]
        write_state(machine.state, [CARD])
        assert len(machine.ask()["cards"]) == 1


def test_a_driver_installed_later_is_found(library: Path, tmp_path: Path) -> None:
    folder = tmp_path / "lib"
    folder.mkdir()
    write_state(tmp_path / "state", [CARD])
    with Machine(folder, tmp_path / "state") as machine:
        assert "Not Found" in machine.ask()["error"]
        (folder / "libnvidia-ml.so.1").symlink_to(library / "libnvidia-ml.so.1")
        assert len(machine.ask()["cards"]) == 1


def test_a_name_that_cannot_be_read_costs_that_card_alone(machine: Machine) -> None:
    shown = machine.state.read_bytes()
    machine.state.write_bytes(shown.replace(b"NVIDIA A100 80GB", b"NVIDIA \xff"))
    odd, other = machine.ask()["cards"]
    assert (odd["position"], odd["uuid"]) == (0, "GPU-a")
    assert "decode" in odd["why"]
    assert other["uuid"] == "GPU-b"
