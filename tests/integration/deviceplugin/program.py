"""The whole device plugin as a process, started as on a node, with the API server away."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import aiohttp

from localcluster.nvml import CardSpec, environment

CARDS = [CardSpec("GPU-a"), CardSpec("GPU-b", mem_mib=81_920)]
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

    def __init__(self, folder: Path, library: Path | None, port: int, *flags: str) -> None:
        seen = environment(library, folder / "state-of-cards") if library is not None else {}
        (folder / "kubeconfig").write_text(NOBODY)
        self.pages = f"http://127.0.0.1:{port}"
        self.process = subprocess.Popen(
            [
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
            ],
            env={**os.environ, **seen},
            stderr=subprocess.PIPE,
            text=True,
        )

    async def page(self, path: str) -> tuple[int, str]:
        async with aiohttp.ClientSession() as session, session.get(self.pages + path) as answer:
            return answer.status, await answer.text()

    async def says(
        self, status: int, text: str, path: str = "/readyz", seconds: float = 20
    ) -> None:
        """Return once the page answers so; TimeoutError if it does not come to that."""
        async with asyncio.timeout(seconds):
            while True:
                try:
                    found = await self.page(path)
                except aiohttp.ClientConnectionError:
                    found = 0, ""  # it is still on its way up
                if found[0] == status and text in found[1]:
                    return
                await asyncio.sleep(0.01)
        raise AssertionError(f"the program has ended: {self.process.communicate()[1]}")

    def end(self) -> str:
        """Kill it if it still runs; what it has logged."""
        self.process.kill()
        return self.process.communicate()[1]
