"""Processes on GPUs are read by the real pynvml from a stand-in for the driver's library."""

import os
import subprocess
import sys
import time
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
    answer = {source.uuid(each): source.processes(each) for each in range(source.count())}
except DriverError as err:
    answer = {"error": str(err)}
sys.stdout.write(msgspec.json.encode(answer).decode())
"""
# Asks for both GPUs' samples for each line on standard input, and answers with a line of JSON.
SAMPLING = """
import sys
import msgspec
from deviceplugin.driver.nvml import NvmlProcesses

source = NvmlProcesses()
for line in sys.stdin:
    found = [[(s.pid, s.sm_percent) for s in source.samples(i)] for i in range(source.count())]
    sys.stdout.write(msgspec.json.encode(found).decode() + chr(10))
    sys.stdout.flush()
"""
# Asks for the limit of the cgroup that is its argument, and answers with a line of JSON.
LIMIT = """
import sys
from pathlib import Path
import msgspec
from deviceplugin.driver.nvml import NvmlProcesses

source = NvmlProcesses()
source.count()
sys.stdout.write(msgspec.json.encode(source.limit(0, Path(sys.argv[1]))).decode())
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
    assert ask([CardSpec("GPU-a", handle_error=15), OTHER]) == {"": None, "GPU-b": []}


def test_without_a_driver_it_is_an_error(ask) -> None:
    assert "Driver Not Loaded" in ask([CARD], init=9)["error"]


@pytest.fixture
def sampling(library: Path, tmp_path: Path):
    """A function that sets the samples of the stand-in, or its error, and returns those read."""
    write_state(tmp_path / "state", [CARD, OTHER])
    program = subprocess.Popen(
        [sys.executable, "-c", SAMPLING],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment(library, tmp_path / "state")},
    )

    def sampled(*samples: dict, error: int = 0) -> list[list[list[int]]]:
        fail = {"nvmlDeviceGetProcessUtilization": error} if error else {}
        write_state(tmp_path / "state", [CARD, OTHER], samples=samples, fail=fail)
        program.stdin.write("\n")
        program.stdin.flush()
        return msgspec.json.decode(program.stdout.readline())

    with program:
        yield sampled
        program.stdin.close()


def sample(pid: int, sm: int, uuid: str = "GPU-a", at_us: int | None = None) -> dict:
    at_us = time.time_ns() // 1000 if at_us is None else at_us
    return {"uuid": uuid, "pid": pid, "sm": sm, "at_us": at_us}


def test_each_gpu_shows_only_samples_that_are_newer_than_the_last_one_shown(sampling) -> None:
    old = sample(10, 99)
    assert sampling(old) == [[], []], "from before the first call"
    first, other = sample(10, 40), sample(10, 7, "GPU-b")
    assert sampling(old, first) == [[[10, 40]], []]
    second = sample(11, 50)
    assert sampling(old, first, second, other) == [[[11, 50]], [[10, 7]]]
    assert sampling(old, first, second, other) == [[], []]


def test_entries_that_the_driver_has_not_filled_are_no_samples(sampling) -> None:
    sampling()
    unfilled, absurd = sample(0, 0, at_us=0), sample(10, 2**32 - 1)
    assert sampling(unfilled, absurd, sample(10, 40)) == [[[10, 40]], []]


@pytest.mark.parametrize("error", [3, 13, 999])
def test_a_driver_that_reports_no_samples_loses_none(sampling, error: int) -> None:
    sampling()
    missed = sample(10, 40)
    assert sampling(missed, error=error) == [[], []]
    assert sampling(missed) == [[[10, 40]], []]


@pytest.fixture
def limit(tmp_path: Path):
    def asked(library: Path, **fail: int) -> dict:
        write_state(tmp_path / "state", [CARD], fail=fail)
        done = subprocess.run(
            [sys.executable, "-c", LIMIT, tmp_path],
            stdout=subprocess.PIPE,
            check=True,
            env={**os.environ, **environment(library, tmp_path / "state")},
        )
        return msgspec.json.decode(done.stdout)

    return asked


@pytest.mark.parametrize("fail", [{}, {"nvmlDeviceGetMemoryLimits_v1": 6}])
def test_a_cgroup_without_a_limit_has_none(limit, limiting_library: Path, fail) -> None:
    """Code 6 is NVML_ERROR_NOT_FOUND, which nvml.h has for limits that were not found."""
    found = limit(limiting_library, **fail)
    assert (found["hard_bytes"], found["why_unknown"]) == (None, "")


def test_a_limit_that_cannot_be_read_is_unknown_with_the_drivers_text(
    limit, library: Path, limiting_library: Path
) -> None:
    refused = limit(limiting_library, nvmlDeviceGetMemoryLimits_v1=17)
    older = limit(library)
    assert "operating system" in refused["why_unknown"]
    assert "Function Not Found" in older["why_unknown"]
    assert refused["hard_bytes"] is refused["used_bytes"] is None
