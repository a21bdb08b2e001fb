"""Processes on GPUs are read by the real pynvml from a stand-in for the driver's library."""

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest

from localcluster.nvml import CardSpec, environment, write_state

# Asks once, and answers with a line of JSON.
PROGRAM = """
import sys
import msgspec
from deviceplugin.errors import DriverError
from deviceplugin.driver.nvml import NvmlProcesses

try:
    source = NvmlProcesses()
    answer = dict(source.processes(position) for position in range(source.count()))
except DriverError as err:
    answer = {"error": str(err)}
sys.stdout.write(msgspec.json.encode(answer).decode())
"""
CARD = CardSpec("GPU-a")
OTHER = CardSpec("GPU-b")


@pytest.fixture
def ask(library: Path, tmp_path: Path):
    def asked(cards: Iterable[CardSpec], processes: Iterable[dict] = (), init: int = 0) -> dict:
        write_state(tmp_path / "state", cards, init=init, processes=processes)
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            stdout=subprocess.PIPE,
            check=True,
            env={**os.environ, **environment(library, tmp_path / "state")},
        )
        return msgspec.json.decode(done.stdout)

    return asked


def test_shows_what_each_process_uses_of_each_gpu(ask) -> None:
    processes = [
        {"uuid": "GPU-a", "pid": 10, "used_mib": 500},
        {"uuid": "GPU-a", "pid": 11, "used_mib": 7, "graphics": 1},
        {"uuid": "GPU-a", "pid": 12, "used_mib": -1},
        {"uuid": "GPU-b", "pid": 10, "used_mib": 3},
    ]
    mib = 1 << 20
    assert ask([CARD, OTHER], processes) == {
        "GPU-a": [
            {"pid": 10, "used_bytes": 500 * mib},
            {"pid": 12, "used_bytes": None},
            {"pid": 11, "used_bytes": 7 * mib},
        ],
        "GPU-b": [{"pid": 10, "used_bytes": 3 * mib}],
    }


def test_a_process_that_computes_and_draws_is_counted_once(ask) -> None:
    twice = {"uuid": "GPU-a", "pid": 10, "used_mib": 500}
    (found,) = ask([CARD], [twice, {**twice, "graphics": 1}])["GPU-a"]
    assert found["used_bytes"] == 500 << 20


def test_a_gpu_that_does_not_report_its_processes_is_not_idle(ask) -> None:
    refused = {"uuid": "GPU-a", "code": 3}
    assert ask([CARD, OTHER], [refused]) == {"GPU-a": None, "GPU-b": []}


def test_a_lost_gpu_leaves_the_others_alone(ask) -> None:
    assert ask([CardSpec("GPU-a", error=15), OTHER]) == {"GPU-a": None, "GPU-b": []}


def test_without_a_driver_it_is_an_error(ask) -> None:
    assert "Driver Not Loaded" in ask([CARD], init=9)["error"]
