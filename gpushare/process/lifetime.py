"""Run the parts of a program until it is stopped or one of them fails."""

import asyncio
import signal
import sys
from collections.abc import Callable, Collection, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from gpushare.errors import RestartNeeded, SettingsError
from gpushare.process.open_files import raise_limit
from gpushare.process.polled_loop import SelectorLoop


async def run_until_stopped(*parts: Coroutine[Any, Any, None]) -> None:
    """Run ``parts`` together until SIGTERM or SIGINT, then cancel them.

    If a part raises, all end and the error is raised, because a restart is better than a program
    that runs partly. RestartNeeded is raised on its own, not in an exception group.
    """
    with stop_on_signals() as stopped, unwrap_restart():
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(part) for part in parts]
            await stopped.wait()
            for task in tasks:
                task.cancel()


async def cancel(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait for their end; their errors are reported elsewhere."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def stop_on_signals() -> Iterator[asyncio.Event]:
    """Yield an event that SIGTERM and SIGINT set while the context lasts."""
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
    """Replace an exception group that contains RestartNeeded by that error."""
    try:
        yield
    except BaseExceptionGroup as group:
        wanted: BaseException | None = group.subgroup(RestartNeeded)
        while isinstance(wanted, BaseExceptionGroup):
            wanted = wanted.exceptions[0]
        if wanted is not None:
            raise wanted from None
        raise


def run(
    program: Callable[[], Coroutine[Any, Any, None]],
    name: str,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] = SelectorLoop,
) -> int:
    """Run a program, with as many open files as it may have, and return its exit code.

    The code is 2 for SettingsError and 3 for RestartNeeded, each with a line on standard error.
    """
    raise_limit()
    try:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(program())
    except (SettingsError, RestartNeeded) as err:
        sys.stderr.write(f"{name}: {err}\n")
        return 2 if isinstance(err, SettingsError) else 3
    return 0
