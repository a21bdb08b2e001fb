"""Measures what callers that send compressed bodies without end cost everybody else.

    python -m bench.attacks

16 connections of another address send a megabyte of gzip each to the extender's listener for
readers, and to the device plugin's port. The floor is the same program before.
"""

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from bench import program
from bench.figures import note
from gpushare.contract import EXTENDER_PREFIX, RESOURCE_MEMORY
from localcluster.gpushare import ROOT
from protos.deviceplugin.v1beta1 import api_pb2
from tests.fakes.kubelet import FakeKubelet
from tests.integration.deviceplugin.program import NOBODY

SECONDS: Final = 10.0


@contextmanager
def attacked(port: int, path: str) -> Iterator[None]:
    words = (sys.executable, "-m", "bench.attacker", str(port), path)
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield
        finally:
            process.kill()


async def times(call: Callable[[], Awaitable[object]]) -> list[float]:
    """Return the times of calls in ms, one after the other with short rests."""
    found, end = [], time.monotonic() + SECONDS
    while time.monotonic() < end:
        began = time.perf_counter()
        await call()
        found.append((time.perf_counter() - began) * 1000)
        await asyncio.sleep(0.01)
    return sorted(found)


async def compare(
    key: str, port: int, path: str, call: Callable[[], Awaitable[object]], share: float
) -> None:
    """Note how much longer ``share`` of the calls take, and the slowest answer about health."""

    async def health() -> None:
        await asyncio.to_thread(urllib.request.urlopen, f"http://127.0.0.1:{port}/healthz")

    quiet = await times(call)
    with attacked(port, path):
        loud, answers = await asyncio.gather(times(call), times(health))
    before, after = (each[int(share * (len(each) - 1))] for each in (quiet, loud))
    median = f"median {statistics.median(quiet):.1f} to {statistics.median(loud):.1f} ms"
    detail = f"{before:.1f} to {after:.1f} ms; {median}"
    print(f"{key}: {after / before:.2f} x ({detail}); slowest health {answers[-1]:.0f} ms")
    note(f"attack-{key}", after / before, detail)
    note(f"attack-{key}-health", answers[-1], f"{len(answers)} answers")


async def extender() -> None:
    with program.running(100, 4, 2):
        limits = {"limits": {RESOURCE_MEMORY: "1"}}
        asks = {
            "metadata": {"namespace": "default", "name": "asks", "uid": "asks"},
            "spec": {"containers": [{"name": "main", "resources": limits}]},
        }
        data = msgspec.json.encode({"Pod": asks, "NodeNames": ["n0"]})

        async def filtered() -> None:
            url = f"http://127.0.0.1:{program.EXTENDER_PORT}{EXTENDER_PREFIX}/filter"
            await asyncio.to_thread(program.post, url, data)

        await compare("filter", program.READING_PORT, f"{EXTENDER_PREFIX}/what-if", filtered, 0.99)


async def plugin() -> None:
    with tempfile.TemporaryDirectory(prefix="gpushare-") as made:
        folder = Path(made)
        (folder / "device-plugins").mkdir()
        (folder / "kubeconfig").write_text(NOBODY)
        kubelet, port = FakeKubelet(folder / "device-plugins"), program.EXTENDER_PORT
        await kubelet.start()
        words = (
            "--node-name=node-1", f"--kubeconfig={folder}/kubeconfig", f"--cdi-dir={folder}/cdi",
            f"--device-plugin-dir={folder}/device-plugins", f"--state-dir={folder}/state",
            "--simulated-gpus=24576", "--http-host=127.0.0.1", f"--http-port={port}",
            "--log-level=error",
        )  # fmt: skip
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "deviceplugin", *words, cwd=ROOT
        )
        try:
            await kubelet.until(lambda: kubelet.allocatable > 0, seconds=60)
            ids = sorted(kubelet.devices)[:4]

            async def called() -> None:
                with suppress(Exception):  # it says that no container has these devices
                    request = api_pb2.PreStartContainerRequest(devices_ids=ids)
                    await kubelet.call("PreStartContainer", request, seconds=30)

            await compare("plugin", port, "/healthz", called, 0.5)
        finally:
            process.terminate()
            await process.wait()
            await kubelet.stop()


if __name__ == "__main__":
    asyncio.run(extender())
    asyncio.run(plugin())
