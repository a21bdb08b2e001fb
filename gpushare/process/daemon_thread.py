"""Calls that may block for ever, each in a daemon thread: none keeps the program from ending.

asyncio's own threads do: whoever ends the loop waits for them.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def call(function: Callable[[], T], name: str) -> asyncio.Future[T]:
    """Call ``function`` in a thread of its own; the future gets its result, or its Exception.

    That is OSError where the machine has no thread left.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: Exception | None) -> None:
        if answer.cancelled():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(result)  # type: ignore[arg-type] # there is one without an error

    def work() -> None:
        result: T | None = None
        error: Exception | None = None
        try:
            result = function()
        except Exception as err:  # noqa: BLE001 - raised again where it is waited for
            error = err
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, result, error)

    try:
        threading.Thread(target=work, name=name, daemon=True).start()
    except RuntimeError as err:
        answer.set_exception(OSError(f"no thread for {name}: {err}"))
    return answer
