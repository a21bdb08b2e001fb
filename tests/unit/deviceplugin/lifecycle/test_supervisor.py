"""The supervisor reacts to each way in which its process can end."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from deviceplugin.lifecycle.supervisor import MAX_RESTARTS

PROGRAM = """
import os, signal, sys, time
from deviceplugin.lifecycle.supervisor import ask_for_another, supervise

def work(before):
    with open({log!r}, "a") as log:
        log.write(f"{{before}}\\n")
    {body}

sys.exit(supervise(work))
"""


def run(folder: Path, body: str) -> tuple[int, list[str]]:
    """Run a program to its end; return its exit code and the number that each process got."""
    log = folder / "log"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(log=str(log), body=body)],
        check=False,
    )
    return done.returncode, log.read_text().split()


@pytest.mark.parametrize("code", [0, 2, 3])
def test_a_process_that_ends_in_order_ends_the_program_with_its_code(tmp_path, code) -> None:
    assert run(tmp_path, f"return {code}") == (code, ["0"])


@pytest.mark.parametrize(
    "crash", ["return 1", "raise ValueError", "os.kill(os.getpid(), signal.SIGKILL)"]
)
def test_a_process_that_crashes_is_followed_by_another(tmp_path, crash) -> None:
    body = f"if before: return 0\n    {crash}"
    assert run(tmp_path, body) == (0, ["0", "1"])


@pytest.mark.parametrize(
    ("crash", "code"), [("return 1", 1), ("os.kill(os.getpid(), signal.SIGKILL)", 137)]
)
def test_one_that_crashes_again_and_again_ends_the_program(tmp_path, crash, code) -> None:
    assert run(tmp_path, crash) == (code, [str(number) for number in range(MAX_RESTARTS + 1)])


def test_a_process_can_request_a_second_one_before_it_ends(tmp_path) -> None:
    first, log = tmp_path / "first", tmp_path / "log"
    body = f"""if before:
        while os.path.exists("/proc/" + open({str(first)!r}).read()): time.sleep(0.01)
        return 0
    with open({str(first)!r}, "w") as file: file.write(str(os.getpid()))
    ask_for_another()
    while "1" not in open({str(log)!r}).read(): time.sleep(0.01)
    return 1"""
    assert run(tmp_path, body) == (0, ["0", "1"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_program_ends_with_its_process(tmp_path, number) -> None:
    body = f"""signal.signal({int(number)}, lambda *_: os._exit(0))
    os.kill(os.getppid(), {int(number)})
    time.sleep(30)"""
    assert run(tmp_path, body) == (0, ["0"])


def test_a_process_that_crashes_while_it_stops_is_not_replaced(tmp_path) -> None:
    body = """signal.signal(signal.SIGTERM, lambda *_: os._exit(1))
    os.kill(os.getppid(), signal.SIGTERM)
    time.sleep(30)"""
    assert run(tmp_path, body) == (1, ["0"])
