"""The extender, which records when its event loop handles what: see bench/filter_trace.py.

    python -m bench.traced_extender FILE --config=CONFIG

At its end it writes the steps to FILE, in the order of their ends.
"""

import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from extender import __main__ as program
from extender.binding.binder import Binder
from extender.decisions.scheduling import Scheduling
from extender.server.scheduler_verbs import Verbs
from gpushare.kube.client import Kube
from gpushare.kube.informer import Informer


class Step(msgspec.Struct):
    """Something that the event loop did without a pause.

    Times are in ns since the epoch, ``cpu`` is the CPU time of the thread so far at both of them.
    """

    what: str
    began: int
    ended: int
    cpu: tuple[int, int]


_steps: list[Step] = []


@contextmanager
def _step(what: str) -> Iterator[None]:
    began, cpu = time.time_ns(), time.thread_time_ns()
    try:
        yield
    finally:
        _steps.append(Step(what, began, time.time_ns(), (cpu, time.thread_time_ns())))


class _Traced(Awaitable[Any]):
    """Runs a coroutine and records each of its steps between two waits."""

    def __init__(self, made: Coroutine[Any, Any, Any], what: str) -> None:
        self._made, self._what = made, what

    def __await__(self) -> Generator[Any, Any, Any]:
        given: Any = None
        send: Callable[[Any], Any] = self._made.send
        while True:
            try:
                with _step(self._what):
                    waits_for = send(given)
            except StopIteration as end:
                return end.value
            try:
                given, send = (yield waits_for), self._made.send
            except BaseException as err:  # noqa: BLE001 - it is the coroutine's
                given, send = err, self._made.throw


def _trace(owner: type, name: str, what: str) -> None:
    """Record the steps of an asynchronous method."""
    method = getattr(owner, name)

    @wraps(method)
    async def traced(*args: Any, **named: Any) -> Any:
        return await _Traced(method(*args, **named), what)

    setattr(owner, name, traced)


def _time(owner: type, name: str, what: str) -> None:
    """Record the calls of an ordinary method."""
    method = getattr(owner, name)

    @wraps(method)
    def timed(*args: Any, **named: Any) -> Any:
        with _step(what):
            return method(*args, **named)

    setattr(owner, name, timed)


def main() -> int:
    path = Path(sys.argv.pop(1))
    _time(web.RequestHandler, "data_received", "request read")
    _trace(Verbs, "_filter", "filter")
    _trace(Verbs, "_bind", "bind")
    _trace(Binder, "_bind", "bind")
    _time(Scheduling, "filter", "decision")
    _trace(Kube, "request", "write")
    _time(Informer, "_handle_line", "watch event")
    try:
        return program.main()
    finally:
        path.write_bytes(msgspec.json.encode(_steps))


if __name__ == "__main__":
    sys.exit(main())
