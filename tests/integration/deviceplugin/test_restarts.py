"""The program starts and ends in order, also next to another one."""

import asyncio
import signal
import socket
from pathlib import Path

import pytest

from deviceplugin.cards.state_file import Saved, StateFile
from deviceplugin.cards.survey import Terms, survey
from localcluster.nvml import CardSpec, write_state
from localcluster.wait import patient
from tests.fakes.certificates import certificate
from tests.fakes.driver import card
from tests.fakes.kubelet import FakeKubelet
from tests.integration.deviceplugin.program import Program

pytestmark = pytest.mark.integration

CARDS = [CardSpec("GPU-a"), CardSpec("GPU-b", mem_mib=81_920)]
STUCK = 3_600_000
TRIES = 5


@pytest.mark.parametrize("driver", ["stuck", "missing"])
async def test_without_api_server_and_driver_it_registers_what_was_known_before(
    folder: Path, kubelet: FakeKubelet, library: Path, start_program, driver: str
) -> None:
    await kubelet.stop()
    (kubelet.folder / "kubelet.sock").unlink(missing_ok=True)
    write_state(folder / "state-of-cards", CARDS, delay_ms=STUCK)
    known = survey(None, [card(0), card(1)], Terms(1024)).inventory
    await StateFile(folder / "state").keep(Saved(known))
    program = start_program(library=library if driver == "stuck" else None)
    await program.says(503, "kubelet.sock does not exist")
    await kubelet.start()
    await kubelet.until(lambda: kubelet.registrations >= 1 and kubelet.allocatable == 30)


async def test_a_stop_answers_the_allocate_in_hand_before_it_ends_the_list(
    folder: Path, kubelet: FakeKubelet, start_program
) -> None:
    shown = certificate(folder, "kubelet")
    (folder / "token").write_text("token")
    listed = 0
    for _ in range(TRIES):
        with socket.socket() as mute:  # takes the question for its pods, and says nothing
            mute.bind(("127.0.0.1", 0))
            mute.listen()
            mute.setblocking(False)
            write_state(folder / "state-of-cards", CARDS)
            program = start_program(
                f"--kubelet-port={mute.getsockname()[1]}",
                f"--kubelet-certificate={shown}",
                f"--kubelet-token={folder / 'token'}",
                "--binding=late",  # early binding would use its own watch
            )
            listed = await _stop_with_an_allocate_in_hand(folder, kubelet, program, mute)
        if listed == 95:
            break
    assert listed == 95, "the list lasts as long as there is an answer to give"


async def _stop_with_an_allocate_in_hand(
    folder: Path, kubelet: FakeKubelet, program: Program, mute: socket.socket
) -> int:
    """Stop the program, whose driver is stuck; units that it lists when it has answered."""
    await program.says(200, "ok")
    write_state(folder / "state-of-cards", CARDS, delay_ms=STUCK)
    ids = list(kubelet.devices)[:2]

    async def allocate() -> int:
        await kubelet.allocate(ids)
        return kubelet.allocatable  # at once: the list may end right after the answer

    allocating = asyncio.create_task(allocate())
    asked, _ = await asyncio.get_running_loop().sock_accept(mute)
    program.process.send_signal(signal.SIGTERM)
    with asked:
        listed = await allocating
    _, errors = await asyncio.to_thread(program.process.communicate, timeout=patient(20))
    assert program.process.returncode == 0, errors
    assert "Traceback" not in errors
    return listed


async def test_a_second_plugin_waits_and_takes_over_when_the_first_ends(
    folder: Path, kubelet: FakeKubelet, start_program
) -> None:
    write_state(folder / "state-of-cards", CARDS)
    running = start_program()
    await kubelet.until(lambda: kubelet.allocatable == 95, seconds=60)
    waiting = start_program()
    await waiting.until_it_stands_by()
    await waiting.says(200, "ok", "/healthz")
    assert kubelet.registrations == 1
    running.kill()
    await kubelet.until(lambda: kubelet.registrations > 1)
    await kubelet.until(lambda: kubelet.allocatable == 95)
    await waiting.says(200, "ok")


async def test_a_second_plugin_that_waits_can_be_stopped(
    folder: Path, kubelet: FakeKubelet, start_program
) -> None:
    write_state(folder / "state-of-cards", CARDS)
    running = start_program()
    await running.says(200, "ok")
    waiting = start_program()
    await waiting.until_it_stands_by()
    waiting.process.send_signal(signal.SIGTERM)
    assert waiting.process.wait(timeout=patient(5)) == 0
    await running.says(200, "ok")


async def test_the_plugin_runs_without_a_lock_that_cannot_be_created(
    folder: Path, kubelet: FakeKubelet, start_program
) -> None:
    write_state(folder / "state-of-cards", CARDS)
    (folder / "state").write_text("a file where a folder should be")
    program = start_program()
    await kubelet.until(lambda: kubelet.allocatable == 95, seconds=60)
    logged = program.kill()
    assert "no lock against a second plugin" in logged
