"""A folder for sockets (their paths must be short), a double of the kubelet, a running plugin."""

import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.driver import FakeDriver, card
from tests.fakes.kubelet import FakeKubelet
from tests.integration.deviceplugin.plugin import Plugin, eventually


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


@pytest.fixture
def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


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
