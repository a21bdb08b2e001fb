"""The owner and the start of a process are read, whatever name it has given itself."""

import os
from pathlib import Path

import pytest

from deviceplugin.usage.cgroup_paths import Owner
from deviceplugin.usage.processes import booted_us, visible
from gpushare.clock import BootClock
from tests.fakes.clock import FakeClock

UID = "5a3c2f0e-6d8b-4b7e-9c55-0f3f5f6c1a20"
BOX = "a" * 64
STAT = "{pid} ({name}) S " + " ".join("0" for _ in range(18)) + " {ticks} 0 0"
TICK_US = 1_000_000 // os.sysconf("SC_CLK_TCK")


def process(proc: Path, pid: int, path: str, *, name: str = "python3", ticks: int = 0) -> None:
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "cgroup").write_text(f"0::{path}\n")
    (proc / str(pid) / "stat").write_text(STAT.format(pid=pid, name=name, ticks=ticks))


@pytest.mark.parametrize("name", ["python3", "a b", "S 0) 1 2", "((\n))", ""])
def test_a_process_counts_from_the_tick_after_it_has_started(tmp_path: Path, name: str) -> None:
    process(tmp_path, 7, f"/kubepods/pod{UID}/{BOX}", name=name, ticks=500)
    (found,) = visible(tmp_path, [7]).values()
    assert found.owner == Owner(UID, BOX)
    assert found.started_us == 501 * TICK_US


def test_processes_that_have_ended_are_left_out(tmp_path: Path) -> None:
    process(tmp_path, 7, "/system.slice/x.service")
    process(tmp_path, 8, "/system.slice/x.service")
    (tmp_path / "8" / "stat").unlink()
    found = visible(tmp_path, [6, 7, 8])
    assert found.keys() == {7}
    assert found[7].owner is None


def test_the_boot_is_as_long_ago_as_the_clock_shows() -> None:
    assert booted_us(FakeClock(5.0)) == 0


def test_this_process_runs_already() -> None:
    clock = BootClock()
    own = visible(Path("/proc"), [os.getpid()])[os.getpid()]
    assert booted_us(clock) + own.started_us <= clock.wall_ns() // 1000
