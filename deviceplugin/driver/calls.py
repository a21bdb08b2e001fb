"""Repeated calls of the driver, of which at most one of each kind is pending.

A call may block forever. Calls for different GPUs are independent, so a GPU that hangs in the
driver delays no other.
"""

import asyncio
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Final, Generic, TypeVar

from deviceplugin.errors import DriverError
from gpushare.process import daemon_thread

T = TypeVar("T")

_MOMENT_SECONDS: Final = 0.5  # for a GPU that did not answer before


class DriverCall(Generic[T]):
    """``function`` blocks, on a broken machine forever; ``name`` is its thread's."""

    def __init__(self, function: Callable[[], T], name: str) -> None:
        self._function = function
        self._name = name
        self._pending: asyncio.Future[T] | None = None

    async def result(self, seconds: float, answered: Callable[[], int] = lambda: 0) -> T:
        """Return the call's result; DriverError if it fails, or is stuck.

        A driver is stuck if ``answered`` has not risen for ``seconds``: a slow one may take longer.
        A pending call is awaited again instead of making another.
        """
        if self._pending is None:
            self._pending = daemon_thread.call(self._function, self._name)
        await _finished({self._pending}, seconds, answered)
        if not self._pending.done():
            raise _stuck(seconds)
        answer, self._pending = self._pending, None
        return _answer(answer)


class CardCalls(Generic[T]):
    """``count`` returns the number of GPUs, ``ask`` queries the one at a position; both block.

    At most one call for a GPU is pending, so there is at most one thread more than GPUs.
    """

    def __init__(self, count: Callable[[], int], ask: Callable[[int], T], name: str) -> None:
        self._count = DriverCall(count, name)
        self._ask = ask
        self._name = name
        self._pending: dict[int, asyncio.Future[T]] = {}
        self._silent: frozenset[int] = frozenset()

    async def results(
        self, seconds: float, answered: Callable[[], int] = lambda: 0
    ) -> list[T | None]:
        """Return the results by position; None for a GPU that is stuck while others answer.

        A GPU that was stuck is not awaited until it has answered promptly again. DriverError if a
        call fails, or the whole driver is stuck as defined in DriverCall.
        """
        count = await self._count.result(seconds, answered)
        late = set(self._pending)
        for position in set(range(count)) - late:
            ask = partial(self._ask, position)
            self._pending[position] = daemon_thread.call(ask, f"{self._name} {position}")
        asked = {position: self._pending[position] for position in range(count)}
        prompt = {call for position, call in asked.items() if position not in self._silent}
        await _finished(prompt or set(asked.values()), seconds, answered)
        await _finished(set(asked.values()), min(_MOMENT_SECONDS, seconds), lambda: 0)
        done = {position: call for position, call in asked.items() if call.done()}
        if asked and not done:
            raise _stuck(seconds)
        self._silent = frozenset((asked.keys() - done.keys()) | (self._silent & late & done.keys()))
        self._pending = {
            position: call for position, call in self._pending.items() if not call.done()
        }
        for call in done.values():
            call.exception()  # one is raised, and asyncio would report the others
        return [_answer(done[p]) if p in done else None for p in range(count)]


async def _finished(
    calls: Collection[asyncio.Future[Any]], seconds: float, answered: Callable[[], int]
) -> None:
    """Return once all are done, or the driver has answered nothing for ``seconds``."""
    left = set(calls)
    while left:
        before = answered()
        done, left = await asyncio.wait(left, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if not done and answered() == before:
            return


def _stuck(seconds: float) -> DriverError:
    return DriverError(f"NVML has not answered within {seconds:g} s")


def _answer(call: asyncio.Future[T]) -> T:
    try:
        return call.result()
    except DriverError:
        raise
    except Exception as err:
        raise DriverError(f"NVML failed: {err!r}") from err
