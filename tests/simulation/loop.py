"""An event loop on virtual time, independent of sockets, threads and the wall clock."""

import asyncio
import heapq
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context
from itertools import count
from typing import Any, Final
from unittest.mock import patch

from tests.simulation.machine import MACHINE, Machine

RESOLUTION: Final = 1e-6
COMPUTING_SECONDS: Final = 0.0002  # between two looks at ``perf_counter``
MOST_TURNS: Final = 20_000  # without time going on: something spins
START: Final = 1000.0


class Spinning(Exception):
    """Something is busy without end while time stands still."""


class _Task(asyncio.Task):
    """A task that is hashed by a number, so that sets have the same order in each run."""

    _numbers = count()

    def __init__(self, *args: Any, **more: Any) -> None:
        self._number = next(self._numbers)
        super().__init__(*args, **more)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class VirtualLoop(asyncio.BaseEventLoop):
    """Time advances only when nothing is left to do at the present moment.

    Code in the context of a machine sees its clock, in ``time`` and in every delay.
    ``before_time_goes_on`` is called at the end of each moment.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = START
        self.before_time_goes_on: Callable[[], None] = lambda: None
        self._world = Context()
        self._turns = self._cancelled = 0
        self._timers: list[tuple[float, int, asyncio.Handle]] = []
        self._numbers = count()  # of two timers for one moment the first is the first to come
        numbers = count()

        def factory(
            loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], **more: Any
        ) -> _Task:
            return _Task(coro, loop=loop, name=f"task {next(numbers)}", **more)

        self.set_task_factory(factory)

    def time(self) -> float:
        machine = MACHINE.get()
        return self.now if machine is None else machine.monotonic()

    def call_at(self, when: float, callback, *args, context=None) -> asyncio.TimerHandle:
        machine = MACHINE.get()
        moment = when if machine is None else machine.true_time(when)
        timer = asyncio.TimerHandle(moment, callback, args, self, context)
        heapq.heappush(self._timers, (moment, next(self._numbers), timer))
        return timer

    def after(self, seconds: float, callback: Callable[..., object], *args: Any) -> None:
        """Call back after so many true seconds, even if the machine is stopped or dead."""
        timer = asyncio.Handle(callback, args, self, self._world)
        heapq.heappush(self._timers, (self.now + seconds, next(self._numbers), timer))

    def resume(self, machine: Machine) -> None:
        """Continue a stopped machine with everything that was held back."""
        machine.state = "runs"
        self._ready.extend(machine.held_back)
        machine.held_back = []

    def run_in_executor(self, executor: object, func: object, *args: object) -> Any:
        raise RuntimeError(f"{func} was to run in a thread: the simulation has none")

    def _write_to_self(self) -> None:
        if threading.get_ident() != self._thread_id:
            raise RuntimeError("another thread called the simulation's event loop")

    def _run_once(self) -> None:
        if not self._ready:
            self.before_time_goes_on()
            self._go_on()
        self._turns += 1
        if self._turns > MOST_TURNS:
            raise Spinning(f"{MOST_TURNS} turns of the event loop at {self.now:.6f} s")
        for _ in range(len(self._ready)):
            handle = self._ready.popleft()
            if handle._cancelled:
                continue
            machine = handle._context.get(MACHINE)
            if machine is None or machine.state == "runs":
                handle._run()
            else:
                machine.held_back.append(handle)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        self._cancelled += 1

    def _go_on(self) -> None:
        if self._cancelled * 2 > len(self._timers):
            self._timers = [timer for timer in self._timers if not timer[2]._cancelled]
            heapq.heapify(self._timers)
            self._cancelled = 0
        timers = self._timers
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
        if not timers:
            if not self._ready and not self._stopping:
                raise Spinning("nothing will ever happen again")
            return
        self._turns = 0
        # A little later than asked for: a clock that is converted and rounded never shows less.
        self.now = max(self.now, timers[0][0]) + RESOLUTION
        while timers and timers[0][0] <= self.now:
            self._ready.append(heapq.heappop(timers)[2])


@contextmanager
def virtual_time(loop: VirtualLoop) -> Iterator[None]:
    """Have ``time`` show the loop's time. Only ``perf_counter`` advances while code computes."""
    computed = count(1)

    def wall_ns() -> int:
        machine = MACHINE.get()
        return machine.wall_ns() if machine is not None else int(loop.now * 1e9)

    with (
        patch.object(time, "monotonic", loop.time),
        patch.object(time, "clock_gettime", lambda _: loop.time()),
        patch.object(time, "perf_counter", lambda: loop.now + next(computed) * COMPUTING_SECONDS),
        patch.object(time, "time", lambda: wall_ns() / 1e9),
        patch.object(time, "time_ns", wall_ns),
    ):
        yield
