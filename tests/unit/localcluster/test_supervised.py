"""A supervised process: restarted, stopped, killed."""

import signal
import sys
from pathlib import Path

import pytest

from localcluster.supervised import ProcessSpec, Supervised
from localcluster.supervisor import Supervisor
from tests.waiting import eventually


def _sleeper(tmp_path: Path, *, restart: bool = True, code: str = "") -> Supervised:
    program = f"import time\n{code}\nprint('up', flush=True)\ntime.sleep(60)"
    argv = (sys.executable, "-S", "-c", program)
    return Supervised(ProcessSpec("sleeper", argv, restart=restart), tmp_path / "sleeper.log")


async def test_what_dies_is_started_again(tmp_path: Path) -> None:
    process = _sleeper(tmp_path)
    await process.start()
    first = process.status()["pid"]
    assert process.kill(signal.SIGKILL)
    await eventually(lambda: process.status()["pid"] not in (None, first))
    assert (process.restarts, process.last_exit) == (1, -signal.SIGKILL)
    await process.stop(grace=5)


async def test_what_is_stopped_stays_so_until_started(tmp_path: Path) -> None:
    process = _sleeper(tmp_path)
    await process.start()
    await process.stop(grace=5)
    assert (process.wanted, process.status()["pid"]) == (False, None)
    await process.start()
    assert process.status()["pid"] is not None
    await process.stop(grace=5)


async def test_without_grace_nothing_is_asked_before_it_is_killed(tmp_path: Path) -> None:
    told = "import signal; signal.signal(signal.SIGTERM, lambda *_: print('asked', flush=True))"
    process = _sleeper(tmp_path, code=told)
    await process.start()
    log = tmp_path / "sleeper.log"
    await eventually(lambda: "up" in log.read_text())
    await process.stop(grace=0)
    assert process.last_exit == -signal.SIGKILL
    assert "asked" not in log.read_text()


async def test_what_ignores_being_asked_is_killed(tmp_path: Path) -> None:
    ignoring = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    process = _sleeper(tmp_path, code=ignoring)
    await process.start()
    await eventually(lambda: "up" in (tmp_path / "sleeper.log").read_text())
    await process.stop(grace=0.1)
    assert process.last_exit == -signal.SIGKILL


async def test_what_is_not_to_be_restarted_ends_for_good(tmp_path: Path) -> None:
    process = _sleeper(tmp_path, restart=False)
    await process.start()
    process.kill(signal.SIGTERM)
    await eventually(lambda: not process.wanted)
    assert process.restarts == 0


async def test_a_program_that_is_not_there_is_an_error_at_once(tmp_path: Path) -> None:
    process = Supervised(ProcessSpec("none", (str(tmp_path / "none"),)), tmp_path / "none.log")
    with pytest.raises(FileNotFoundError):
        await process.start()
    assert not process.wanted


async def test_a_supervisor_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path)
    spec = ProcessSpec("one", (sys.executable, "-S", "-c", "import time; time.sleep(60)"))
    run = {"do": "run", "spec": spec.to_wire()}
    assert await supervisor.answer(run) == {}
    assert "running already" in (await supervisor.answer(run))["error"]
    unknown = await supervisor.answer({"do": "stop", "name": "two"})
    assert unknown == {"error": "nothing is called 'two' here; there are: one"}
    assert "not a request" in (await supervisor.answer({"do": "dance", "name": "one"}))["error"]
    assert "not a request" in (await supervisor.answer({}))["error"]
    await supervisor.answer({"do": "shutdown"})
    (status,) = (await supervisor.answer({"do": "status"}))["processes"]
    assert (status["pid"], status["wanted"], supervisor.ended.is_set()) == (None, False, True)
