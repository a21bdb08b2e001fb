"""How a program ends: all its parts run until it is told to stop or one of them fails."""

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from gpushare.errors import SettingsError


async def run_until_stopped(*parts: Coroutine[Any, Any, None]) -> None:
    """Run ``parts`` together until SIGTERM or SIGINT, then cancel them.

    A part that raises ends all of them, and its error is raised: better restarted than half alive.
    """
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(part) for part in parts]
            await stopped.wait()
            for task in tasks:
                task.cancel()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def run(program: Callable[[], Awaitable[None]], name: str) -> int:
    """Run a program to its exit code: 2 and one line where its settings cannot be used."""

    async def main() -> None:
        await program()

    try:
        asyncio.run(main())
    except SettingsError as err:
        sys.stderr.write(f"{name}: {err}\n")
        return 2
    return 0
