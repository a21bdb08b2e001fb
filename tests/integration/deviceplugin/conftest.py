"""A folder with a short path for sockets, a double of the kubelet, and a running plugin."""

import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import pytest

from deviceplugin.driver.interface import Seen
from tests.fakes.driver import FakeDriver
from tests.fakes.kubelet import FakeKubelet
from tests.integration.deviceplugin.plugin import CARDS, Plugin
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
    """Run a plugin, with two GPUs of 15 units by default, until the end of the test."""
    async with AsyncExitStack() as stack:

        async def started(*shown: Seen, **changes: Any) -> Plugin:
            made = Plugin(folder, kubelet, FakeDriver(*(shown or CARDS)), **changes)
            await stack.enter_async_context(made.running())
            await eventually(lambda: not (made.driver_watch.why_silent or made.registrar.why_not))
            units = sum(each.units for each in made.cards.inventory.cards)
            await kubelet.until(lambda: kubelet.allocatable == units)
            return made

        yield started
