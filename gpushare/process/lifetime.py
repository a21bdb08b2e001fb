"""How a program ends: all its parts run until it is told to stop or one of them fails."""

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from gpushare.errors import RestartNeeded, SettingsError


async def run_until_stopped(*parts: Coroutine[Any, Any, None]) -> None:
    """Run ``parts`` together until SIGTERM or SIGINT, then cancel them.

    A part that raises ends all of them, and its error is raised: better restarted than half alive.
    RestartNeeded is raised by itself, out of the group that it ended.
    """
    with stop_on_signals() as stopped, unwrap_restart():
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(part) for part in parts]
            await stopped.wait()
            for task in tasks:
                task.cancel()


async def cancel(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until they have ended; their errors are reported elsewhere."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def stop_on_signals() -> Iterator[asyncio.Event]:
    """Give an event that SIGTERM and SIGINT set while the context lasts."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    try:
        yield stopped
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


@contextmanager
def unwrap_restart() -> Iterator[None]:
    """Raise RestartNeeded by itself, out of a group of errors that has it."""
    try:
        yield
    except BaseExceptionGroup as group:
        if (wanted := group.subgroup(RestartNeeded)) is not None:
            raise _first(wanted) from None
        raise


def run(program: Callable[[], Awaitable[None]], name: str) -> int:
    """Run a program to its exit code.

    2 and one line where its settings cannot be used, 3 and one line where it ends to be restarted.
    """

    async def main() -> None:
        await program()

    try:
        asyncio.run(main())
    except SettingsError as err:
        sys.stderr.write(f"{name}: {err}\n")
        return 2
    except RestartNeeded as err:
        sys.stderr.write(f"{name}: {err}\n")
        return 3
    return 0


def _first(group: BaseExceptionGroup[RestartNeeded]) -> RestartNeeded:
    found = group.exceptions[0]
    return _first(found) if isinstance(found, BaseExceptionGroup) else found
