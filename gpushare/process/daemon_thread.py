"""Run calls that may block forever in daemon threads, which do not delay the program's exit.

The threads of asyncio's executor do: the end of the loop waits for them.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

T = TypeVar("T")


def call(function: Callable[[], T], name: str) -> asyncio.Future[T]:
    """Call ``function`` in a new thread; the future gets its result or Exception.

    The future gets an OSError if no thread can be started.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(outcome: Callable[[], None]) -> None:
        if not future.cancelled():
            outcome()

    def work() -> None:
        try:
            outcome = partial(future.set_result, function())
        except Exception as err:  # noqa: BLE001 - raised again by the future
            outcome = partial(future.set_exception, err)
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, outcome)

    try:
        threading.Thread(target=work, name=name, daemon=True).start()
    except RuntimeError as err:
        future.set_exception(OSError(f"no thread for {name}: {err}"))
    return future
