"""One plugin takes over from another without a moment in which none serves."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from deviceplugin.cards.state_file import Saved, encode
from deviceplugin.cards.survey import Terms, survey
from deviceplugin.driver.interface import PhysicalCard
from localcluster.nvml import CardSpec, write_state
from protos.deviceplugin.v1beta1 import api_pb2
from tests.fakes.kubelet import FakeKubelet
from tests.integration.deviceplugin.program import Program

UNITS = 30
Serve = Callable[..., Awaitable[Program]]
CARDS = (CardSpec("GPU-first", mem_mib=16276), CardSpec("GPU-second", mem_mib=16276))


@pytest.fixture
def serve(folder: Path, kubelet: FakeKubelet, start_program) -> Serve:
    """Start a program, and wait until the kubelet has its devices."""
    write_state(folder / "state-of-cards", CARDS)

    async def served(**words: Any) -> Program:
        program = start_program(**words)
        await kubelet.until(lambda: kubelet.allocatable == UNITS, seconds=30)
        return program

    return served


@asynccontextmanager
async def asked_all_the_time(kubelet: FakeKubelet) -> AsyncIterator[list[str]]:
    """Call the plugin that the kubelet knows, again and again; give what went wrong."""
    wrong: list[str] = []
    ended = asyncio.Event()
    kubelet.least = kubelet.allocatable

    async def ask() -> None:
        while not ended.is_set():
            try:
                await kubelet.call("GetDevicePluginOptions", api_pb2.Empty())
            except grpc.aio.AioRpcError as err:
                wrong.append(str(err.details()))
            await asyncio.sleep(0.005)

    asking = asyncio.create_task(ask())
    try:
        yield wrong
    finally:
        ended.set()
        await asking


@pytest.mark.parametrize("by_socket", ["", "takes", "rejects"])
async def test_no_device_is_unhealthy_and_no_call_fails_while_one_plugin_takes_over(
    serve: Serve, kubelet: FakeKubelet, start_program, by_socket
) -> None:
    kubelet.by_socket = by_socket
    running = await serve()
    for _ in range(2):  # the third one has the first one's socket
        following = start_program()
        await following.until_it_stands_by()
        async with asked_all_the_time(kubelet) as wrong:
            before = asked(kubelet)
            logged = await asyncio.to_thread(running.end)
            await kubelet.until(lambda wanted=before + 2: asked(kubelet) >= wanted)
        assert (wrong, kubelet.least) == ([], UNITS), logged
        running = following
    await running.says(200, "ok")
    lost = "gpushare_deviceplugin_registrations_lost_total"
    assert await running.metric(lost, cause="stream") == 0
    # What the kubelet has on its books is the plugin that lives: its end is noticed.
    os.kill(running.worker(), signal.SIGKILL)
    await kubelet.until(lambda: kubelet.allocatable == 0)


async def test_one_that_takes_over_registers_once_its_driver_has_answered(
    serve: Serve, folder: Path, kubelet: FakeKubelet, start_program
) -> None:
    known = [PhysicalCard(card.uuid, n, "m", card.mem_mib) for n, card in enumerate(CARDS)]
    (folder / "state").mkdir()
    before = Saved(survey(None, known, Terms(1024)).inventory)
    (folder / "state" / "state.json").write_bytes(encode(before))
    running = await serve()
    following = start_program()
    await following.until_it_stands_by()
    write_state(folder / "state-of-cards", CARDS, delay_ms=50)
    await asyncio.to_thread(running.end)
    await kubelet.until(lambda: kubelet.registrations >= 3)
    logged = following.kill()
    assert 0 < logged.find('"the driver answers"') < logged.find('"registered"'), logged


async def test_one_that_stands_by_is_not_ready_before_its_driver_has_shown_the_gpus(
    serve: Serve, kubelet: FakeKubelet, start_program
) -> None:
    running = await serve()
    standing_by = start_program(library=None)
    await standing_by.says(503, "not ready to take over: NVML does not answer")
    await standing_by.says(200, "ok", "/healthz")
    await running.says(200, "ok")
    assert (kubelet.registrations, kubelet.allocatable) == (1, UNITS)


async def test_one_that_stands_by_is_not_ready_with_a_unit_too_fine_for_the_kubelet(
    folder: Path, kubelet: FakeKubelet, start_program
) -> None:
    many = [CardSpec(f"GPU-{n}", mem_mib=81_920) for n in range(8)]
    write_state(folder / "state-of-cards", many)
    start_program()
    await kubelet.until(lambda: kubelet.allocatable == 640, seconds=30)
    standing_by = start_program("--memory-unit=1MiB")
    await standing_by.says(503, "--memory-unit=4MiB")
    write_state(folder / "state-of-cards", CARDS)  # it tries again
    await standing_by.says(200, "ok")
    assert kubelet.registrations == 1


def asked(kubelet: FakeKubelet) -> int:
    """How often a plugin has registered, once more for a socket that was registered included."""
    return kubelet.registrations + kubelet.repeated


async def test_a_plugin_whose_part_fails_answers_until_another_process_serves(
    serve: Serve, folder: Path, kubelet: FakeKubelet
) -> None:
    program = await serve(crashes_at=folder / "crash")
    await program.says(200, "ok")
    first = program.worker()
    async with asked_all_the_time(kubelet) as wrong:
        before = kubelet.registrations
        (folder / "crash").touch()
        await kubelet.until(lambda: kubelet.registrations >= before + 2, seconds=20)
        await program.until_ended(first)
    assert (wrong, kubelet.least) == ([], UNITS)
    await program.says(200, "ok")
    assert program.process.poll() is None
    logged = program.kill()
    assert "the crash that was asked for" in logged


async def test_a_worker_that_is_killed_is_followed_by_another(
    serve: Serve, kubelet: FakeKubelet
) -> None:
    program = await serve()
    os.kill(program.worker(), signal.SIGKILL)
    await kubelet.until(lambda: kubelet.allocatable == 0)
    await kubelet.until(lambda: kubelet.allocatable == UNITS)
    await program.says(200, "ok")
    assert await program.metric("gpushare_deviceplugin_crashes") == 1
    assert program.process.poll() is None


async def test_what_the_first_process_started_ends_with_it(serve: Serve) -> None:
    program = await serve()
    worker = program.worker()
    program.kill()
    await program.until_ended(worker)
