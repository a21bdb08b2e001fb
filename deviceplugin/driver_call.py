"""A call of the driver that is made again and again, and never while one is still out."""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from deviceplugin import daemon
from deviceplugin.errors import DriverError

T = TypeVar("T")


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
            self._pending = daemon.call(self._function, self._name)
        while True:
            before = answered()
            done, _ = await asyncio.wait({self._pending}, timeout=seconds)
            if done:
                break
            if answered() == before:
                raise DriverError(f"NVML has not answered within {seconds:g} s")
        answer, self._pending = self._pending, None
        try:
            return answer.result()
        except DriverError:
            raise
        except Exception as err:
            raise DriverError(f"NVML failed: {err!r}") from err
