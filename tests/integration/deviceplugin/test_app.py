"""The whole program runs as on a node, without the API server."""

import asyncio
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from deviceplugin.cards.state_file import Saved, encode
from deviceplugin.cards.survey import Terms, survey
from deviceplugin.driver.interface import PhysicalCard
from localcluster.nvml import CardSpec, write_state
from localcluster.wait import patient
from tests.fakes.kubelet import FakeKubelet
from tests.integration.deviceplugin.program import NOBODY, Program
from tests.metrics_table import differences, rows
from tests.waiting import eventually

pytestmark = pytest.mark.integration

CARDS = [CardSpec("GPU-a"), CardSpec("GPU-b", mem_mib=81_920)]


@pytest.fixture
def program(folder: Path, start_program) -> Program:
    write_state(folder / "state-of-cards", CARDS)
    return start_program()


async def test_offers_its_gpus_without_the_api_server_and_ends_when_asked_to(
    program: Program, kubelet: FakeKubelet
) -> None:
    await kubelet.until(lambda: kubelet.allocatable == 15 + 80, seconds=60)
    async with asyncio.timeout(patient(5)):
        while (await program.page("/readyz"))[0] != 200:
            pass
    status, text = await program.page("/metrics")
    assert status == 200
    assert "gpushare_deviceplugin_list_devices 95.0" in text
    assert 'gpushare_deviceplugin_binding{binding="early"} 1.0' in text, "nothing is known yet"
    assert differences(text, rows("Device plugin")) == []
    assert "Traceback" not in program.end()


async def test_a_disk_that_hangs_keeps_it_neither_from_its_work_nor_from_ending(
    folder: Path, kubelet: FakeKubelet, start_program
) -> None:
    write_state(folder / "state-of-cards", CARDS)
    (folder / "state").mkdir()
    before = survey(None, [PhysicalCard("GPU-a", 0, "m", 16_276)], Terms(1024)).inventory
    (folder / "state" / "state.json").write_bytes(encode(Saved(before)))
    os.mkfifo(folder / "state" / "state.json.new")  # opening it for writing never returns
    program = start_program()
    await kubelet.until(lambda: kubelet.allocatable == 95, seconds=60)
    await program.until("gpushare_deviceplugin_state_errors_total", 1, what="write")
    program.end()


async def test_a_client_that_never_finishes_its_request_does_not_hold_up_the_end(
    program: Program,
) -> None:
    await program.says(200, "ok")
    began = time.monotonic()
    program.end()
    alone = time.monotonic() - began
    program.start()
    await program.says(200, "ok")
    half = b"POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nx"
    with socket.create_connection(("127.0.0.1", program.port)) as client:
        client.sendall(half)
        assert client.recv(1000)
        began = time.monotonic()
        program.end()
        # Ten seconds is what the library waits for the rest.
        assert time.monotonic() - began < 5 + 3 * alone


async def test_gpus_by_cdi_with_early_binding_say_so_and_offer_no_readiness(
    folder: Path, kubelet: FakeKubelet, start_program
) -> None:
    write_state(folder / "state-of-cards", CARDS)
    program = start_program("--inject=cdi", "--binding=early")
    await kubelet.until(lambda: kubelet.allocatable == 95, seconds=60)
    status, text = await program.page("/readyz")
    errors = program.kill()
    assert status == 503
    assert "--inject=cdi needs a runtime that resolves CDI names" in text
    assert '"why":"--binding=early is set"' in errors


async def test_what_processes_use_is_measured_when_asked_for(
    folder: Path, kubelet: FakeKubelet, start_program
) -> None:
    used = [{"uuid": "GPU-b", "pid": os.getpid(), "used_mib": 300}]
    write_state(folder / "state-of-cards", CARDS, processes=used)
    program = start_program("--process-memory")
    await program.says(200, "gpushare_deviceplugin_others_used_mib{", "/metrics")
    _, text = await program.page("/metrics")
    shown = re.findall(r'others_used_mib{by="[\w-]+",card="1",uuid="GPU-b"} (\S+)', text)
    # Where the tests themselves run in a pod, this process is one of a pod that is not known here.
    assert sorted(map(float, shown)) == [0, 0, 300]


def test_a_flag_that_cannot_be_used_ends_the_program_with_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "deviceplugin", "--node-name=n", "--memory-unit=lots"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("gpushare-deviceplugin: --memory-unit=lots: write GiB")
    assert len(done.stderr.splitlines()) == 1


async def test_what_is_wrong_with_the_node_is_in_readyz_and_an_event(
    folder: Path, kubelet: FakeKubelet, start_program
) -> None:
    node = {
        "metadata": {"name": "node-1", "uid": "u", "labels": {"gpushare": "true"}},
        "status": {"capacity": {"nvidia.com/gpu": "2"}},
    }
    told: list[dict] = []

    async def api(request: web.Request) -> web.StreamResponse:
        if request.method == "POST":
            told.append(await request.json())
        if "watch" in request.query:
            await asyncio.Event().wait()
        if request.path == "/api/v1/nodes":
            return web.json_response({"items": [node], "metadata": {"resourceVersion": "1"}})
        if request.path == "/api/v1/pods":
            return web.json_response({"items": [], "metadata": {"resourceVersion": "1"}})
        return web.json_response(node)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", api)
    write_state(folder / "state-of-cards", CARDS)
    async with TestServer(app) as server:
        kubeconfig = folder / "with-api"
        kubeconfig.write_text(NOBODY.replace("http://127.0.0.1:9", str(server.make_url(""))))
        program = start_program(f"--kubeconfig={kubeconfig}")
        try:
            await program.says(503, "nvidia.com/gpu is 2")
            await program.says(200, "ok", "/healthz")
            await kubelet.until(lambda: kubelet.allocatable == 95)
            await eventually(lambda: told)
        finally:
            program.kill()  # before the server, which would wait for its requests
    assert [event["reason"] for event in told] == ["WholeCardPlugin"]
    assert told[0]["involvedObject"]["kind"] == "Node"
