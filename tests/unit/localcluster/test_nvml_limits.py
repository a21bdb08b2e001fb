"""The stand-in for the driver's library keeps memory limits by GPU and cgroup."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from localcluster import cgroups
from localcluster.errors import HostError
from localcluster.nvml import (
    NO_LIMIT,
    CardSpec,
    environment,
    hard_limits,
    read_limits,
    write_state,
)

# Calls NVML for each of its arguments, and prints the answers, or the code of the first error.
PROGRAM = """
import json, sys
import pynvml
pynvml.nvmlInit()
answers = []
for uuid, cgroup, *amounts in map(json.loads, sys.argv[1:]):
    gpu = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    try:
        if amounts:
            limits = pynvml.c_nvmlSetMemoryLimits_v1_t(cgroup.encode(), *amounts)
            answers.append(pynvml.nvmlDeviceSetMemoryLimits_v1(gpu, limits))
        else:
            found = pynvml.c_nvmlGetMemoryLimits_v1_t(cgroup.encode(), 1, 1, 1)
            pynvml.nvmlDeviceGetMemoryLimits_v1(gpu, found)
            answers.append([found.softLimit, found.hardLimit, found.currentUsed])
    except pynvml.NVMLError as err:
        answers.append(err.value)
print(json.dumps(answers))
"""
GIB = 1 << 30
CARDS = [CardSpec("GPU-a", mem_mib=16 << 10), CardSpec("GPU-b", mem_mib=16 << 10)]
MIG = CardSpec("GPU-mig", mem_mib=16 << 10, mig=True)
INVALID, NOT_SUPPORTED, OPERATING_SYSTEM = 2, 3, 17


@dataclass(frozen=True)
class Driver:
    """A driver whose cgroups are plain folders."""

    library: Path
    folder: Path

    def cgroup(self, name: str) -> Path:
        made = self.folder / "cgroups" / name
        made.mkdir(parents=True)
        return made

    def start(self, *calls: tuple[object, ...]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *(json.dumps(call, default=str) for call in calls)],
            env={**os.environ, **environment(self.library, self.folder / "state")},
            stdout=subprocess.PIPE,
            text=True,
        )

    def call(self, *calls: tuple[object, ...]) -> list[object]:
        out, _ = self.start(*calls).communicate()
        return json.loads(out)

    @property
    def mount(self) -> Path:
        return next(each for each in self.folder.parents if each.is_mount())

    def rows(self) -> list[tuple[str, str, int, int]]:
        found = read_limits(self.folder, self.mount)
        return [(each.uuid, Path(each.cgroup).name, each.soft, each.hard) for each in found]


@pytest.fixture
def driver(limiting_library: Path, tmp_path: Path) -> Driver:
    write_state(tmp_path / "state", [*CARDS, MIG])
    return Driver(limiting_library, tmp_path)


def test_a_cgroup_has_the_limits_that_were_set_last_on_each_card(driver: Driver) -> None:
    one, two = driver.cgroup("one"), driver.cgroup("two")
    assert driver.rows() == []
    driver.call(("GPU-a", one, 0, GIB), ("GPU-b", one, 0, 3 * GIB), ("GPU-a", two, GIB, 4 * GIB))
    driver.call(("GPU-a", one, 0, 2 * GIB))
    found = driver.call(("GPU-a", one), ("GPU-b", one), ("GPU-a", two), ("GPU-b", two))
    assert found == [[0, 2 * GIB, 0], [0, 3 * GIB, 0], [GIB, 4 * GIB, 0], [0, NO_LIMIT, 0]]
    assert driver.rows() == [
        ("GPU-a", "one", 0, 2 * GIB),
        ("GPU-b", "one", 0, 3 * GIB),
        ("GPU-a", "two", GIB, 4 * GIB),
    ]
    assert hard_limits(driver.folder, "GPU-a", driver.mount) == 6 * GIB


def test_a_cgroup_is_the_same_by_every_path(driver: Driver) -> None:
    one = driver.cgroup("one")
    (driver.folder / "link").symlink_to(one.parent)
    driver.call(("GPU-a", driver.folder / "link" / "one", 0, GIB))
    assert driver.call(("GPU-a", one)) == [[0, GIB, 0]]


def test_a_limit_ends_when_it_is_cleared_and_with_its_cgroup(driver: Driver) -> None:
    one, two = driver.cgroup("one"), driver.cgroup("two")
    driver.call(("GPU-a", one, 0, GIB), ("GPU-a", two, 0, GIB), ("GPU-a", one, 0, NO_LIMIT))
    assert driver.rows() == [("GPU-a", "two", 0, GIB)]
    two.rename(two.with_name("three"))
    driver.cgroup("two")
    assert driver.rows() == []
    assert driver.call(("GPU-a", two)) == [[0, NO_LIMIT, 0]]


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (("GPU-a", "one", 2 * GIB, GIB), INVALID),
        (("GPU-a", "one", 0, 17 * GIB), INVALID),
        (("GPU-a", "one", 17 * GIB, NO_LIMIT), INVALID),
        (("GPU-mig", "one", 0, GIB), NOT_SUPPORTED),
        (("GPU-mig", "one"), NOT_SUPPORTED),
        (("GPU-a", "none", 0, GIB), OPERATING_SYSTEM),
        (("GPU-a", "none"), OPERATING_SYSTEM),
    ],
)
def test_what_the_real_driver_refuses_is_refused(
    driver: Driver, call: tuple[object, ...], code: int
) -> None:
    one = driver.cgroup("one")
    uuid, name, *amounts = call
    assert driver.call((uuid, one.with_name(str(name)), *amounts)) == [code]
    assert driver.rows() == []


def test_processes_that_set_limits_at_the_same_time_lose_none(driver: Driver) -> None:
    names = [f"c{number}" for number in range(4)]
    calls = [("GPU-a", driver.cgroup(name), 0, GIB) for name in names]
    for each in [driver.start(*[call] * 50) for call in calls]:
        each.communicate()
    assert sorted(driver.rows()) == [("GPU-a", name, 0, GIB) for name in names]


def test_the_use_of_a_cgroup_is_that_of_its_processes(driver: Driver) -> None:
    try:
        root = cgroups.unified()
    except HostError as problem:
        pytest.skip(str(problem))
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    (path,) = [line.removeprefix("0::/") for line in lines if line.startswith("0::/")]
    own = {"uuid": "GPU-a", "pid": os.getpid()}
    processes = [{**own, "used_mib": 1024}, {**own, "uuid": "GPU-b", "used_mib": 2048}]
    processes.append({"uuid": "GPU-a", "pid": 2**22 + 1, "used_mib": 1})  # no such process
    write_state(driver.folder / "state", CARDS, processes=processes)
    assert driver.call(("GPU-a", root / path)) == [[0, NO_LIMIT, GIB]]
    assert driver.call(("GPU-a", root)) == [[0, NO_LIMIT, GIB]]
    elsewhere = driver.cgroup("elsewhere")
    assert driver.call(("GPU-a", elsewhere)) == [[0, NO_LIMIT, 0]]
