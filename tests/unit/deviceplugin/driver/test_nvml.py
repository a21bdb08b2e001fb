"""GPUs and events are read by the real pynvml from a stand-in for the driver's library."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Self

import msgspec
import pytest

from deviceplugin.driver.interface import Query
from deviceplugin.driver.nvml import CGROUP
from localcluster.nvml import CardSpec, environment, write_state

# Asks the backend once for each line on standard input, and answers with a line of JSON. An empty
# line asks for its cards, in another thread as the plugin does; a number of seconds asks for its
# next event.
PROGRAM = """
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import msgspec
from deviceplugin.errors import DriverError
from deviceplugin.driver.nvml import Nvml

nvml = Nvml(Path(sys.argv[1]))
for line in sys.stdin:
    try:
        if line.strip():
            event = nvml.next_event(float(line))
            answer = {"event": event, "heard": sorted(nvml.heard)}
        else:
            with ThreadPoolExecutor(1) as fresh:
                answer = {"cards": list(fresh.map(nvml.card, range(nvml.count())))}
    except DriverError as err:
        answer = {"error": str(err), "kind": type(err).__name__}
    sys.stdout.write(msgspec.json.encode(answer).decode() + chr(10))
    sys.stdout.flush()
"""
CARD = CardSpec("GPU-a", "NVIDIA A100 80GB", 81_920, reserved_mib=500)
SMALL = CardSpec("GPU-b", mem_mib=16_276)


class Machine:
    """A program that sees the stand-in's cards; ``ask`` is what the backend shows now."""

    def __init__(self, library: Path, state: Path, cgroup: Path = CGROUP) -> None:
        self.state = state
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(cgroup)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment(library, state)},
        )

    def ask(self, line: str = "") -> dict:
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return msgspec.json.decode(self._process.stdout.readline())

    def processor_seconds(self) -> float:
        """What the program has used until now."""
        words = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(") ")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def listen(self, seconds: float = 0.05) -> dict:
        """Return the next event after a check, which makes new GPUs known."""
        self.ask()
        return self.ask(str(seconds))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()
        assert self._process.returncode == 0


@pytest.fixture
def machine(library: Path, tmp_path: Path) -> Iterator[Machine]:
    write_state(tmp_path / "state", [CARD, SMALL])
    with Machine(library, tmp_path / "state") as made:
        yield made


SHOWN = {
    "minor": 0,
    "model": "NVIDIA Stand-in",
    "memory_mib": 16_276,
    "reserved_mib": 0,
    "is_mig": False,
    "recovery_action": 0,
    "rows_failed": False,
    "repair_pending": False,
    "uncorrected_errors": 0,
    "why_no_limit": "driver 999.1 cannot limit memory; R615 and newer can",
    "hides_limits": "",
    "failed": {},
}
UNREAD = {"is_definite": False, "is_silent": False, "is_duplicate": False}


def test_every_gpu_is_shown_with_its_reserved_memory(machine: Machine) -> None:
    first = {"model": "NVIDIA A100 80GB", "memory_mib": 81_920, "reserved_mib": 500}
    assert machine.ask()["cards"] == [
        {**SHOWN, "uuid": "GPU-a", **first},
        {**SHOWN, "uuid": "GPU-b", "minor": 1},
    ]


def test_a_lost_gpu_is_named_and_leaves_the_others_alone(machine: Machine) -> None:
    machine.ask()
    write_state(machine.state, [CardSpec("GPU-a", error=15), SMALL])
    lost, other = machine.ask()["cards"]
    assert lost == {
        **UNREAD,
        "position": 0,
        "uuid": "GPU-a",
        "why": "GPU is lost",
        "is_definite": True,
    }
    assert other["uuid"] == "GPU-b"
    write_state(machine.state, [CARD, SMALL])
    assert machine.ask()["cards"][0]["memory_mib"] == 81_920


def test_a_gpu_that_cannot_even_be_found_keeps_its_place(machine: Machine) -> None:
    write_state(machine.state, [CARD, CardSpec("GPU-b", handle_error=999)])
    found = machine.ask()["cards"][1]
    assert found == {**UNREAD, "position": 1, "uuid": "", "why": "Unknown Error"}


def test_an_older_driver_does_not_report_reserved_memory(machine: Machine) -> None:
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


def test_a_gpu_whose_name_cannot_be_read_is_shown_without_it(machine: Machine) -> None:
    shown = machine.state.read_bytes()
    machine.state.write_bytes(shown.replace(b"NVIDIA A100 80GB", b"NVIDIA \xff"))
    odd, other = machine.ask()["cards"]
    assert (odd["uuid"], odd["model"], odd["memory_mib"]) == ("GPU-a", "", 81_920)
    assert "decode" in odd["failed"]["nvmlDeviceGetName"]
    assert other["failed"] == {}


def test_any_other_query_that_fails_is_named_and_the_gpu_is_shown(machine: Machine) -> None:
    older = [replace(CARD, recovery_action=None), replace(SMALL, recovery_action=None)]
    for query in Query:
        for code in (2, 4, 10, 999):
            write_state(machine.state, older, fail={query: code})
            first, second = machine.ask()["cards"]
            assert list(first["failed"]) == list(second["failed"]) == [query]
            assert (first["memory_mib"], second["memory_mib"]) == (81_920, 16_276)


def test_a_query_that_fails_for_one_gpu_is_not_that_of_another(machine: Machine) -> None:
    odd = replace(CARD, failing="nvmlDeviceGetMinorNumber")
    write_state(machine.state, [odd, SMALL])
    first, second = machine.ask()["cards"]
    assert (first["minor"], first["failed"].keys()) == (-1, {"nvmlDeviceGetMinorNumber"})
    assert (second["minor"], second["failed"]) == (1, {})


@pytest.mark.parametrize("mig", [False, True])
def test_a_failed_query_of_the_mig_mode_is_decided_by_how_many_instances_there_may_be(
    machine: Machine, mig: bool
) -> None:
    write_state(machine.state, [replace(CARD, mig=mig)], fail={"nvmlDeviceGetMigMode": 999})
    assert machine.ask()["cards"][0]["is_mig"] is mig


@pytest.mark.parametrize("code", [15, 16])
def test_any_query_may_say_that_the_gpu_is_lost_or_needs_a_reset(
    machine: Machine, code: int
) -> None:
    write_state(machine.state, [CARD], fail={"nvmlDeviceGetRemappedRows": code})
    assert machine.ask()["cards"][0]["is_definite"]


def test_memory_errors_are_asked_only_of_a_driver_that_advises_nothing(machine: Machine) -> None:
    ill = CardSpec("GPU-a", rows_pending=True, uncorrected=3)
    older = replace(ill, uuid="GPU-b", recovery_action=None)
    pages = CardSpec("GPU-c", pages_pending=True, recovery_action=None)
    write_state(machine.state, [ill, older, pages])
    found = [(c["repair_pending"], c["uncorrected_errors"]) for c in machine.ask()["cards"]]
    assert found == [(False, 0), (True, 3), (True, 0)]


def test_memory_can_be_limited_where_library_driver_and_cgroups_can(
    library: Path, limiting_library: Path, tmp_path: Path
) -> None:
    calls = "nvmlDeviceGetMemoryLimits_v1"
    (tmp_path / "v1").mkdir()
    (tmp_path / "v2").mkdir()
    (tmp_path / "v2" / "cgroup.controllers").touch()
    cases = [
        (library, "v2", {}, "driver 999.1 cannot limit memory; R615 and newer can", ""),
        (limiting_library, "v1", {}, "no cgroup v2", ""),
        (limiting_library, "v2", {}, "", ""),
        (limiting_library, "v2", {calls: 3}, "does not support memory limits", ""),
        (limiting_library, "v2", {calls: 4}, "", "does not let the plugin read memory limits"),
        (limiting_library, "v2", {calls: 999}, "", ""),
    ]
    for folder, cgroup, fail, why_no_limit, hides in cases:
        write_state(tmp_path / "state", [CARD], fail=fail)
        with Machine(folder, tmp_path / "state", tmp_path / cgroup) as machine:
            (card,) = machine.ask()["cards"]
            assert why_no_limit in card["why_no_limit"]
            assert bool(card["why_no_limit"]) == bool(why_no_limit)
            assert hides in card["hides_limits"]
            assert bool(card["hides_limits"]) == bool(hides)
            assert card["failed"] == {}


def test_what_the_driver_advises_and_failed_memory_rows_are_shown(machine: Machine) -> None:
    ill = CardSpec("GPU-a", recovery_action=2, rows_failed=True)
    write_state(machine.state, [ill, CardSpec("GPU-b", recovery_action=None)])
    first, second = machine.ask()["cards"]
    assert (first["recovery_action"], first["rows_failed"]) == (2, True)
    assert (second["recovery_action"], second["rows_failed"]) == (None, False)


def test_a_driver_without_a_query_has_healthy_gpus(machine: Machine) -> None:
    for query in ("FieldValues", "RemappedRows", "MigMode", "MemoryInfo_v2"):
        for code in (3, 13):
            write_state(machine.state, [CARD, SMALL], fail={f"nvmlDeviceGet{query}": code})
            assert [card["memory_mib"] for card in machine.ask()["cards"]] == [81_920, 16_276]


def test_a_gpu_that_is_lost_or_needs_a_reset_is_sure_to_be(machine: Machine) -> None:
    for code in (15, 16):
        write_state(machine.state, [CARD, CardSpec("GPU-b", error=code)])
        assert machine.ask()["cards"][1]["is_definite"]


def test_a_gpu_without_its_own_memory_is_reported_and_does_not_affect_others(
    machine: Machine,
) -> None:
    write_state(machine.state, [CardSpec("GPU-a", memory_error=3), SMALL])
    odd, other = machine.ask()["cards"]
    assert odd["uuid"] == "GPU-a"
    assert "nothing to share by memory" in odd["why"]
    assert not odd["is_definite"]
    assert other["memory_mib"] == 16_276


def test_a_library_of_another_driver_is_an_error_with_the_fix(machine: Machine) -> None:
    machine.ask()
    for change in ({"init": 18}, {"fail": {"nvmlDeviceGetUUID": 18}}):
        write_state(machine.state, [CARD], **change)
        answer = machine.ask()
        assert answer["kind"] == "DriverReplaced"
        assert "restart this plugin's pod" in answer["error"]


def test_half_a_state_file_changes_nothing(machine: Machine) -> None:
    before = machine.ask()
    whole = machine.state.read_bytes()
    for length in range(0, len(whole), 7):
        machine.state.write_bytes(whole[:length])
        assert machine.ask() == before


def event(seq: int, uuid: str = "GPU-b", xid: int = 79, kind: int = 8) -> dict[str, object]:
    return {"seq": seq, "uuid": uuid, "type": kind, "data": xid}


def test_events_of_every_gpu_are_heard(machine: Machine) -> None:
    assert machine.listen() == {"event": None, "heard": ["GPU-a", "GPU-b"]}
    write_state(machine.state, [CARD, SMALL], events=[event(1), event(2, "GPU-a", 31)])
    assert machine.listen()["event"] == {"uuid": "GPU-b", "xid": 79}
    assert machine.listen()["event"] == {"uuid": "GPU-a", "xid": 31}
    assert machine.listen()["event"] is None


def test_other_events_cause_a_check(machine: Machine) -> None:
    machine.listen()
    for seq, kind in enumerate((0x100, 0x4000, 0x8000), start=1):
        write_state(machine.state, [CARD, SMALL], events=[event(seq, kind=kind)])
        assert machine.listen()["event"] == {"uuid": "GPU-b", "xid": 0}


def test_an_event_of_a_lost_gpu_has_its_uuid(machine: Machine) -> None:
    machine.listen()
    lost = CardSpec("GPU-b", handle_error=15)
    write_state(machine.state, [CARD, lost], events=[event(1)])
    assert machine.listen() == {"event": {"uuid": "GPU-b", "xid": 79}, "heard": ["GPU-a"]}
    write_state(machine.state, [CARD, SMALL])
    assert machine.listen()["heard"] == ["GPU-a", "GPU-b"]


def test_a_gpu_that_hangs_keeps_no_event_of_any_gpu_away(machine: Machine) -> None:
    machine.listen()
    hanging = CardSpec("GPU-b", hangs=True)
    write_state(machine.state, [CARD, hanging], events=[event(1, xid=119), event(2, "GPU-a", 48)])
    for uuid, xid in (("GPU-b", 119), ("GPU-a", 48)):
        assert machine.ask("0.05")["event"] == {"uuid": uuid, "xid": xid}


def test_a_gpu_without_events_leaves_the_others_heard(machine: Machine) -> None:
    deaf = CardSpec("GPU-b", events=False)
    write_state(machine.state, [CARD, deaf])
    assert machine.listen() == {"event": None, "heard": ["GPU-a"]}
    assert [card["memory_mib"] for card in machine.ask()["cards"]] == [81_920, 16_276]
    write_state(machine.state, [CardSpec("GPU-a", events=False), deaf])


@pytest.mark.parametrize("cards", [[], [CardSpec("GPU-a", events=False)]])
def test_waiting_without_events_blocks_and_uses_no_cpu(
    machine: Machine, cards: list[CardSpec]
) -> None:
    write_state(machine.state, cards)
    machine.ask()
    began, spent = time.monotonic(), machine.processor_seconds()
    assert machine.listen(0.5) == {"event": None, "heard": []}
    assert time.monotonic() - began >= 0.5
    assert machine.processor_seconds() - spent < 0.1


def test_a_gpu_that_appears_later_is_heard_too(machine: Machine) -> None:
    machine.listen()
    late = CardSpec("GPU-c")
    write_state(machine.state, [CARD, SMALL, late])
    assert machine.listen()["heard"] == ["GPU-a", "GPU-b", "GPU-c"]
    write_state(machine.state, [CARD, SMALL, late], events=[event(1, "GPU-c", 48)])
    assert machine.listen()["event"] == {"uuid": "GPU-c", "xid": 48}


def test_a_failed_wait_is_retried(machine: Machine) -> None:
    machine.listen()
    for _ in range(3):
        for function in ("nvmlEventSetWait_v2", "nvmlEventSetCreate"):
            write_state(machine.state, [CARD, SMALL], fail={function: 999})
            assert "Unknown Error" in machine.listen()["error"]
            assert len(machine.ask()["cards"]) == 2
        write_state(machine.state, [CARD, SMALL])
        assert machine.listen() == {"event": None, "heard": ["GPU-a", "GPU-b"]}
