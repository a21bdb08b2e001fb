"""Calls of the driver that are made again and again, and never while one of them is still out.

A call may block for ever. One for the whole driver is waited for; those for the cards are apart, so
that a card which hangs in the driver holds up no other.
"""

import asyncio
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Final, Generic, TypeVar

from deviceplugin.errors import DriverError
from gpushare.process import daemon_thread

T = TypeVar("T")

_MOMENT_SECONDS: Final = 0.5  # for a card that has been silent


class DriverCall(Generic[T]):
    """``function`` blocks, on a sick machine for ever; ``name`` is its thread's."""

    def __init__(self, function: Callable[[], T], name: str) -> None:
        self._function = function
        self._name = name
        self._pending: asyncio.Future[T] | None = None

    async def result(self, seconds: float, answered: Callable[[], int] = lambda: 0) -> T:
        """What it returns; DriverError if it fails, or is stuck.

        Stuck is a driver for which ``answered`` has not risen for ``seconds``: a slow one takes its
        time. A call that is still out is waited for again, so there is one call to answer.
        """
        if self._pending is None:
            self._pending = daemon_thread.call(self._function, self._name)
        await _finished({self._pending}, seconds, answered)
        if not self._pending.done():
            raise _stuck(seconds)
        answer, self._pending = self._pending, None
        return _answer(answer)


class CardCalls(Generic[T]):
    """``count`` says how many cards there are, ``ask`` asks for the one at a position; both block.

    One call for a card is out at a time, so there are never more threads than cards and one.
    """

    def __init__(self, count: Callable[[], int], ask: Callable[[int], T], name: str) -> None:
        self._count = DriverCall(count, name)
        self._ask = ask
        self._name = name
        self._out: dict[int, asyncio.Future[T]] = {}
        self._silent: frozenset[int] = frozenset()

    async def results(
        self, seconds: float, answered: Callable[[], int] = lambda: 0
    ) -> list[T | None]:
        """What each returns, by position; None for a card that is stuck while others answer.

        A card that was stuck is not waited for until it has answered at once again. DriverError if
        a call fails, or the whole driver is stuck; see DriverCall for what that is.
        """
        count = await self._count.result(seconds, answered)
        late = set(self._out)
        for position in set(range(count)) - late:
            ask = partial(self._ask, position)
            self._out[position] = daemon_thread.call(ask, f"{self._name} {position}")
        asked = {position: self._out[position] for position in range(count)}
        prompt = {call for position, call in asked.items() if position not in self._silent}
        await _finished(prompt or set(asked.values()), seconds, answered)
        await _finished(set(asked.values()), min(_MOMENT_SECONDS, seconds), lambda: 0)
        done = {position: call for position, call in asked.items() if call.done()}
        if asked and not done:
            raise _stuck(seconds)
        self._silent = frozenset((asked.keys() - done.keys()) | (self._silent & late & done.keys()))
        self._out = {position: call for position, call in self._out.items() if not call.done()}
        for call in done.values():
            call.exception()  # one is raised, and asyncio would complain of the others
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
