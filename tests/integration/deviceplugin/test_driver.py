"""The program handles faults of the driver's library, through the real pynvml."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from deviceplugin.cards.rules import HealthReason, State
from deviceplugin.cards.state_file import Kept, Saved, decode, encode
from deviceplugin.cards.survey import Terms, survey
from deviceplugin.driver.interface import PhysicalCard
from localcluster.nvml import SONAME, CardSpec, write_state
from localcluster.wait import patient
from tests.fakes.kubelet import FakeKubelet
from tests.integration.deviceplugin.program import Program

pytestmark = pytest.mark.integration

FIRST, SECOND = CardSpec("GPU-a"), CardSpec("GPU-b", mem_mib=81_920)
BOTH = 15 + 80
HELD = 1  # the device of the running pod, which stays healthy
PATIENCE = 60.0  # a program takes seconds to start on a busy machine

Start = Callable[..., Program]


@pytest.fixture
def state(folder: Path) -> Path:
    write_state(folder / "state-of-cards", [FIRST, SECOND])
    return folder / "state-of-cards"


@pytest.fixture
def start(start_program: Start, state: Path) -> Start:
    return partial(start_program, "--recover-after=0.3")


def xid(seq: int, number: int, uuid: str = "GPU-b") -> dict[str, object]:
    return {"seq": seq, "uuid": uuid, "type": 8, "data": number}


async def test_xids_make_the_gpu_unhealthy_that_the_driver_gives_up_and_no_other(
    start: Start, state: Path, kubelet: FakeKubelet
) -> None:
    program = start("--recover-after=30", "--health-interval=60")
    await program.until("gpushare_deviceplugin_event_cards", 2)
    await kubelet.until(lambda: kubelet.allocatable == BOTH, seconds=PATIENCE)
    lists = len(kubelet.lists)
    for seq, number in enumerate((31, 13, 109), start=1):
        write_state(state, [FIRST, SECOND], events=[xid(seq, number)])
        counter = "gpushare_deviceplugin_xids_total"
        await program.until(counter, 1, card="GPU-b", xid=str(number))
    assert len(kubelet.lists) == lists, "an application's fault is not the card's"
    write_state(state, [FIRST, SECOND], events=[xid(4, 79)])
    await kubelet.until(lambda: kubelet.allocatable == 15, seconds=PATIENCE)
    assert len(kubelet.lists) == lists + 1, "80 devices, one message"
    assert await program.metric("gpushare_deviceplugin_cards", health="healthy") == 1
    first = CardSpec("GPU-a", recovery_action=1)
    write_state(state, [first, SECOND], events=[xid(5, 119, "GPU-a")])
    await kubelet.until(lambda: kubelet.allocatable == 0, seconds=PATIENCE)
    # A check may show the advice before the event: the next check then reports the XID.
    card = {"card": "GPU-a", "state": "unhealthy", "reason": "xid"}
    await program.until("gpushare_deviceplugin_card_state", 1, **card)
    text = program.end()
    assert "XID 79: the GPU has fallen off the bus" in text
    assert "XID 119: the driver advises to reset the GPU" in text


async def test_a_mig_switch_is_seen_at_once_and_comes_back_at_once(
    start: Start, state: Path, kubelet: FakeKubelet
) -> None:
    program = start("--recover-after=600", "--health-interval=60")
    await program.until("gpushare_deviceplugin_event_cards", 2)
    switch = {"seq": 1, "uuid": "GPU-b", "type": 0x100, "data": 0}
    write_state(state, [FIRST, CardSpec("GPU-b", mem_mib=81_920, mig=True)], events=[switch])
    await kubelet.until(lambda: kubelet.allocatable == 15, seconds=PATIENCE)
    await program.until("gpushare_deviceplugin_cards", 1, health="mig")
    write_state(state, [FIRST, SECOND], events=[{**switch, "seq": 2}])
    await kubelet.until(lambda: kubelet.allocatable == BOTH, seconds=PATIENCE)


async def test_a_gpu_is_lost_comes_back_and_waits_longer_each_time(
    start: Start, state: Path, kubelet: FakeKubelet
) -> None:
    program = start("--recover-after=0.6", "--health-interval=0.1")
    await kubelet.until(lambda: kubelet.allocatable == BOTH, seconds=PATIENCE)
    took = []
    for _ in range(3):
        write_state(state, [CardSpec("GPU-a", error=15), SECOND])
        await kubelet.until(lambda: kubelet.allocatable == 80, seconds=PATIENCE)
        began = time.monotonic()
        write_state(state, [FIRST, SECOND])
        await kubelet.until(lambda: kubelet.allocatable == BOTH, seconds=PATIENCE)
        took.append(time.monotonic() - began)
    assert took[0] >= 0.6
    assert took[1] >= 1.2
    assert took[2] >= 2.4
    recoveries = await program.metric("gpushare_deviceplugin_recoveries_total", card="GPU-a")
    assert recoveries == 3


def keep(folder: Path, **healths: Kept) -> None:
    """What a plugin that has run here before has left on disk."""
    seen = [
        PhysicalCard("GPU-a", 0, "NVIDIA Stand-in", 16_276, 0),
        PhysicalCard("GPU-b", 1, "NVIDIA Stand-in", 81_920, 0),
    ]
    (folder / "state").mkdir()
    saved = Saved(survey(None, seen, Terms(1024)).inventory, {"GPU-b": healths["second"]})
    (folder / "state" / "state.json").write_bytes(encode(saved))


async def test_a_slow_driver_delays_no_registration(
    start: Start, folder: Path, state: Path, kubelet: FakeKubelet
) -> None:
    keep(folder, second=Kept(State.HEALTHY))
    write_state(state, [FIRST, SECOND], delay_ms=2000)  # about 30 s for a check
    program = start()
    await kubelet.until(lambda: kubelet.allocatable == BOTH, seconds=PATIENCE)
    status, text = await program.page("/readyz")
    assert (status, "has not been asked yet" in text) == (503, True), "no check has ended yet"
    assert len(kubelet.lists) == 1


async def test_a_gpu_that_hangs_affects_no_other(
    start: Start, state: Path, kubelet: FakeKubelet
) -> None:
    program = start("--recover-after=30")
    await program.until("gpushare_deviceplugin_event_cards", 2)
    await kubelet.until(lambda: kubelet.allocatable == BOTH, seconds=PATIENCE)
    hanging = CardSpec("GPU-b", mem_mib=81_920, hangs=True)
    write_state(state, [FIRST, hanging])
    await kubelet.until(lambda: kubelet.allocatable == 15, seconds=PATIENCE)
    assert (await program.page("/readyz"))[0] == 200
    registrations = kubelet.registrations
    await kubelet.restart()
    await kubelet.until(
        lambda: kubelet.registrations > registrations and kubelet.allocatable == 15, seconds=5
    )
    # An XID of the other card is heard, and judged by what the driver advises about that card.
    first = CardSpec("GPU-a", recovery_action=1)
    write_state(state, [first, hanging], events=[xid(1, 109, "GPU-a")])
    await kubelet.until(lambda: kubelet.allocatable == 0, seconds=PATIENCE)
    card = {"card": "GPU-a", "state": "unhealthy", "reason": "xid"}
    await program.until("gpushare_deviceplugin_card_state", 1, **card)
    text = program.end()
    assert '"GPU-b","was":"suspect","now":"unhealthy","why":"the driver does not answer' in text
    assert "XID 109: the driver advises to reset the GPU" in text


async def test_what_a_gpu_owes_it_owes_after_a_restart(
    start: Start, folder: Path, kubelet: FakeKubelet
) -> None:
    keep(folder, second=Kept(State.RECOVERING, "XID 48", illnesses=2, owed=3.0))
    program = start("--recover-after=600")
    await kubelet.until(lambda: kubelet.allocatable == 15, seconds=PATIENCE)
    began = time.monotonic()
    await kubelet.until(lambda: kubelet.allocatable == BOTH, seconds=PATIENCE)
    assert time.monotonic() - began > 1.0
    program.end()
    kept = decode((folder / "state" / "state.json").read_bytes())
    assert kept.healths == {"GPU-b": Kept(State.HEALTHY, "", illnesses=2, reason=HealthReason.NONE)}


async def test_an_xid_that_needs_a_reset_outlives_the_program(
    start: Start, folder: Path, state: Path, kubelet: FakeKubelet
) -> None:
    older = [replace(each, recovery_action=None) for each in (FIRST, SECOND)]
    keep(folder, second=Kept(State.HEALTHY))
    write_state(state, older)
    program = start()
    await program.until("gpushare_deviceplugin_event_cards", 2)
    await kubelet.until(lambda: kubelet.allocatable == BOTH, seconds=PATIENCE)
    write_state(state, older, events=[xid(1, 48)])
    await kubelet.until(lambda: kubelet.allocatable == 15, seconds=PATIENCE)
    assert "cordoned and uncordoned" in program.end()
    program.start()
    await program.until("gpushare_deviceplugin_event_cards", 2)
    await kubelet.until(lambda: kubelet.allocatable == 15, seconds=PATIENCE)
    # Another GPU is lost and back in the meantime, which takes longer than the recovery time.
    write_state(state, [replace(older[0], error=15), older[1]])
    await kubelet.until(lambda: kubelet.allocatable == 0, seconds=PATIENCE)
    write_state(state, older)
    await program.until("gpushare_deviceplugin_recoveries_total", 1, card="GPU-a")
    card = {"card": "GPU-b", "state": "unhealthy", "reason": "xid"}
    assert await program.metric("gpushare_deviceplugin_card_state", **card) == 1
    assert kubelet.allocatable == 15


async def test_queries_that_fail_for_one_gpu_take_none_away_and_are_named(
    start: Start, state: Path, kubelet: FakeKubelet
) -> None:
    program = start()
    await kubelet.until(lambda: kubelet.allocatable == BOTH, seconds=PATIENCE)
    lists = len(kubelet.lists)
    write_state(state, [replace(FIRST, failing="nvmlDeviceGetRemappedRows"), SECOND])
    warned = "gpushare_deviceplugin_failing_queries"
    await program.until(warned, 1, card="GPU-a", query="nvmlDeviceGetRemappedRows")
    assert len(kubelet.lists) == lists
    write_state(state, [FIRST, SECOND])
    await program.until(warned, 0, card="GPU-a", query="nvmlDeviceGetRemappedRows")
    assert "GPU GPU-a: nvmlDeviceGetRemappedRows fails (Unknown Error)" in program.end()


async def test_pods_of_the_old_memory_unit_keep_the_node_to_themselves_over_a_restart(
    start: Start, folder: Path, kubelet: FakeKubelet
) -> None:
    keep(folder, second=Kept(State.HEALTHY))
    kubelet.held["uid-1", "app"] = frozenset({"a0000"}), b""
    kubelet.write_checkpoint()
    program = start("--memory-unit=512MiB")
    await program.says(503, "uid-1")
    await kubelet.until(lambda: kubelet.allocatable == HELD, seconds=PATIENCE)
    assert len(kubelet.devices) < 31 + 160, "in the old unit"
    program.end()
    assert decode((folder / "state" / "state.json").read_bytes()).inventory.unit_mib == 1024
    program = start("--memory-unit=512MiB")
    await program.says(503, "memory unit was changed")
    await kubelet.until(lambda: kubelet.allocatable == HELD, seconds=PATIENCE)
    kubelet.held.clear()
    kubelet.write_checkpoint()
    await kubelet.until(lambda: kubelet.allocatable == 31 + 160, seconds=PATIENCE)
    program.end()
    assert decode((folder / "state" / "state.json").read_bytes()).inventory.unit_mib == 512


async def test_a_library_that_is_missing_is_found_when_it_comes(
    start: Start, folder: Path, library: Path, kubelet: FakeKubelet
) -> None:
    empty = folder / "lib"
    empty.mkdir()
    program = start(library=empty)
    await program.says(503, "Library Not Found")
    assert kubelet.registrations == 0
    (empty / SONAME).symlink_to(library / SONAME)
    await kubelet.until(lambda: kubelet.allocatable == BOTH, seconds=PATIENCE)
    await program.until("gpushare_deviceplugin_event_cards", 2)


async def test_the_first_gpu_of_a_node_without_gpus_is_offered(
    start: Start, state: Path, kubelet: FakeKubelet
) -> None:
    write_state(state, [])
    program = start()
    await program.until("gpushare_deviceplugin_list_bytes", 0)
    write_state(state, [FIRST])
    await kubelet.until(lambda: kubelet.allocatable == 15, seconds=PATIENCE)


async def test_a_driver_that_was_replaced_ends_the_program_with_one_line(
    start: Start, state: Path, kubelet: FakeKubelet
) -> None:
    program = start()
    await kubelet.until(lambda: kubelet.allocatable == BOTH, seconds=PATIENCE)
    write_state(state, [FIRST, SECOND], init=18)
    await kubelet.until(lambda: kubelet.allocatable == 0, seconds=PATIENCE)
    assert program.process.poll() is None, "the kubelet gets the list first"
    status, text = await program.page("/readyz")
    assert (status, "restart this plugin's pod" in text) == (503, True)
    _, errors = await asyncio.to_thread(program.process.communicate, timeout=patient(PATIENCE))
    assert program.process.returncode == 3
    assert "Traceback" not in errors
    plain = [line for line in errors.splitlines() if not line.startswith("{")]
    assert len(plain) == 1
    assert plain[0].startswith("gpushare-deviceplugin: the driver was replaced")
    assert kubelet.devices, "the kubelet still knows the devices"
