"""Runs the extender in its own process against a paper API server."""

import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from gpushare.contract import EXTENDER_PREFIX
from tests.integration.kube.apiserver import kubeconfig

EXTENDER_PORT: Final = 32751
API_PORT: Final = 32752
READING_PORT: Final = 32753
READY_SECONDS: Final = 120.0
_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Program:
    """A running extender; ``ready_seconds`` is the time from its start until /readyz succeeded."""

    pid: int
    ready_seconds: float

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{EXTENDER_PORT}{EXTENDER_PREFIX}"

    def cpu_seconds(self) -> float:
        return cpu_seconds(self.pid)

    def mib(self, what: str) -> float:
        """Return ``VmRSS``, or ``VmHWM``, the highest so far."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        (kib,) = (line.split()[1] for line in lines if line.startswith(f"{what}:"))
        return int(kib) / 1024

    def fits(self, pod: Any, node: str) -> bool:
        body = msgspec.json.encode({"Pod": pod, "NodeNames": [node]})
        found = msgspec.json.decode(post(f"{self.url}/filter", body))
        return bool(found["NodeNames"])


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process and its threads have used so far."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / _TICKS  # utime, stime: proc_pid_stat(5)


def order(path: str) -> Any:
    """Send a command to the paper API server and return its answer."""
    return msgspec.json.decode(post(f"http://127.0.0.1:{API_PORT}/bench/{path}", b""))


def post(url: str, body: bytes) -> bytes:
    with urllib.request.urlopen(urllib.request.Request(url, body), timeout=60) as answer:  # noqa: S310
        found: bytes = answer.read()
        return found


def configured(folder: Path) -> Path:
    """Write the extender's configuration file and return its path."""
    path, access = folder / "extender.yaml", folder / "kubeconfig"
    access.write_bytes(msgspec.json.encode(kubeconfig(f"http://127.0.0.1:{API_PORT}")))
    found = {
        "memoryUnit": "MiB",
        "kubeconfig": str(access),
        "logLevel": "error",
        "listen": {
            "deciding": {"host": "127.0.0.1", "port": EXTENDER_PORT},
            "reading": {"host": "127.0.0.1", "port": READING_PORT, "access": "open"},
        },
    }
    path.write_bytes(msgspec.json.encode(found))
    return path


@contextmanager
def running(
    nodes: int, cards: int, pods_a_card: int, others_a_node: int = 0, *, profile: str = ""
) -> Iterator[Program]:
    """Run both processes; yield once the extender is ready. ``profile``: a file for cProfile."""
    how = ["-m", "cProfile", "-o", profile] if profile else []
    numbers = nodes, cards, pods_a_card, others_a_node
    with paper_api(*numbers), tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        with _process(*how, "-m", "extender", f"--config={configured(Path(folder))}") as extender:
            _await(f"http://127.0.0.1:{EXTENDER_PORT}/readyz")
            yield Program(extender.pid, time.perf_counter() - began)


@contextmanager
def paper_api(*numbers: int) -> Iterator[None]:
    """Run a paper API server with these numbers of nodes, cards, and pods on each card.

    A fourth number is that of pods on each node that request no GPU memory.
    """
    with _process("-m", "bench.paper_api", str(API_PORT), *map(str, numbers)):
        _await(f"http://127.0.0.1:{API_PORT}/api/v1/nodes?limit=1")
        yield


@contextmanager
def _process(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, *words])
    try:
        yield process
    finally:
        process.terminate()
        process.wait(timeout=60)


def _await(url: str) -> None:
    end = time.monotonic() + READY_SECONDS
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(url, timeout=60):  # noqa: S310
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    raise TimeoutError(f"{url} did not answer for {READY_SECONDS:g} s")
