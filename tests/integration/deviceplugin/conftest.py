"""A folder for sockets (their paths must be short), a double of the kubelet, a running plugin."""

import itertools
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.driver import FakeDriver, card
from tests.fakes.kubelet import FakeKubelet
from tests.integration.deviceplugin.plugin import Plugin
from tests.integration.deviceplugin.program import Program
from tests.waiting import eventually


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="gpushare-") as made:
        yield Path(made)


@pytest.fixture
async def kubelet(folder: Path) -> AsyncIterator[FakeKubelet]:
    sockets = folder / "device-plugins"
    sockets.mkdir()
    double = FakeKubelet(sockets)
    await double.start()
    yield double
    await double.stop()


@pytest.fixture(scope="session")
def ports(worker_id: str) -> Iterator[int]:
    """Ports of this machine that nobody has, one after the other.

    They are below the range that the kernel gives to outgoing connections, and each worker has its
    own: a program that starts seconds later still finds its port free.
    """
    worker = 0 if worker_id == "master" else int(worker_id.removeprefix("gw"))
    first = 20_000 + 1_000 * worker
    return filter(_is_free, itertools.cycle(range(first, first + 1_000)))


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@pytest.fixture
def unused_port(ports: Iterator[int]) -> int:
    return next(ports)


@pytest.fixture
def start_program(
    folder: Path, kubelet: FakeKubelet, library: Path, ports: Iterator[int]
) -> Iterator[Callable[..., Program]]:
    """Start the whole program, each time with a port of its own; all of them end with the test."""
    with ExitStack() as stack:

        def started(*flags: str, library: Path | None = library, **words: Any) -> Program:
            made = Program(folder, library, next(ports), *flags, **words)
            stack.callback(made.kill)
            return made

        yield started


@pytest.fixture
async def start(
    folder: Path, kubelet: FakeKubelet
) -> AsyncIterator[Callable[..., Awaitable[Plugin]]]:
    """Run a plugin with two cards of 15 units; it ends with the test."""
    running = []

    async def started(**words: Any) -> Plugin:
        made = Plugin(folder, kubelet, FakeDriver(card(0), card(1)), **words)
        running.append(made.running())
        await running[-1].__aenter__()
        await kubelet.until(lambda: kubelet.allocatable == 30)
        await eventually(lambda: not made.driver_watch.why_silent)
        return made

    yield started
    for each in running:
        await each.__aexit__(None, None, None)
