"""The whole program, started as on a node, without the API server."""

import asyncio
import contextlib
import os
import subprocess
import sys
from pathlib import Path

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from localcluster.gpushare import ROOT
from localcluster.nvml import environment
from localcluster.wait import patient
from tests.fakes.crash import put_crash_module

NOBODY = """
apiVersion: v1
kind: Config
current-context: c
clusters: [{name: c, cluster: {server: "http://127.0.0.1:9"}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
users: [{name: u, user: {}}]
"""


class Program:
    """``library`` is the stand-in's folder; None for a machine without the driver's library."""

    def __init__(
        self,
        folder: Path,
        library: Path | None,
        port: int,
        *flags: str,
        crashes_at: Path | None = None,
    ) -> None:
        """``crashes_at``: once this file is there a part of the plugin fails."""
        seen = environment(library, folder / "state-of-cards") if library is not None else {}
        (folder / "kubeconfig").write_text(NOBODY)
        self.port = port
        self.pages = f"http://127.0.0.1:{port}"
        self._environment = {**os.environ, **seen}
        self._command = [
            sys.executable,
            "-m",
            "deviceplugin",
            "--node-name=node-1",
            f"--kubeconfig={folder / 'kubeconfig'}",
            f"--device-plugin-dir={folder / 'device-plugins'}",
            f"--cdi-dir={folder / 'cdi'}",
            f"--state-dir={folder / 'state'}",
            "--health-interval=0.1",
            "--http-host=127.0.0.1",
            f"--http-port={port}",
            *flags,
        ]
        if crashes_at is not None:
            put_crash_module(folder, crashes_at)
            self._environment["PYTHONPATH"] = f"{folder}:{ROOT}"
        self.start()

    def start(self) -> None:
        """Start it, again where it has ended."""
        self.process = subprocess.Popen(
            self._command, env=self._environment, stderr=subprocess.PIPE, text=True
        )

    async def page(self, path: str) -> tuple[int, str]:
        async with aiohttp.ClientSession() as session, session.get(self.pages + path) as answer:
            return answer.status, await answer.text()

    async def metric(self, name: str, **labels: str) -> float:
        """0 where it is not there."""
        _, text = await self.page("/metrics")
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == name and sample.labels == labels:
                    return sample.value
        return 0.0

    async def until(self, metric: str, value: float, seconds: float = 60.0, **labels: str) -> None:
        """Return once a metric has ``value``; TimeoutError if it does not come to that."""
        async with asyncio.timeout(patient(seconds)):
            while True:
                with contextlib.suppress(aiohttp.ClientError):
                    if await self.metric(metric, **labels) == value:
                        return
                await asyncio.sleep(0.01)

    async def says(self, status: int, text: str, path: str = "/readyz") -> None:
        """Return once the page answers so; TimeoutError with what it answered instead."""
        found = None
        try:
            async with asyncio.timeout(patient(60)):
                while self.process.poll() is None:
                    with contextlib.suppress(aiohttp.ClientError):
                        found = await self.page(path)
                        if found[0] == status and text in found[1]:
                            return
                    await asyncio.sleep(0.01)
        except TimeoutError as problem:
            raise TimeoutError(f"{path} answers {found}\n{self.kill()}") from problem
        raise AssertionError(f"the program has ended: {self.process.communicate()[1]}")

    async def until_it_stands_by(self) -> None:
        """Return once it is ready though it offers nothing: another plugin serves."""
        await self.says(200, "ok")
        assert await self.metric("gpushare_deviceplugin_registered") == 0

    def worker(self) -> int:
        """The process that serves: the newest that the first one has started."""
        started = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return max(map(int, started.split()))

    async def until_ended(self, process: int) -> None:
        """Return once a process that this program has started is gone."""
        async with asyncio.timeout(patient(20)):
            while Path(f"/proc/{process}").exists():  # noqa: ASYNC110, ASYNC240
                await asyncio.sleep(0.01)

    def kill(self) -> str:
        """Kill it if it still runs; return its log unless that was returned before."""
        self.process.kill()
        assert self.process.stderr is not None
        return "" if self.process.stderr.closed else self.process.communicate()[1]

    def end(self) -> str:
        """Stop it as a node does; what it has logged."""
        self.process.terminate()
        _, errors = self.process.communicate(timeout=patient(30))
        assert self.process.returncode == 0, errors
        return errors
