"""A folder for sockets (their paths must be short) and a running double of the kubelet."""

import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.fakes.kubelet import FakeKubelet


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
