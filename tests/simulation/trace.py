"""Record what happens in a run, for a replay."""

import logging
from collections.abc import Callable

from tests.simulation.machine import MACHINE

_PLAIN = frozenset(vars(logging.makeLogRecord({})))


class Trace:
    """Keep lines if wanted; they cost time."""

    def __init__(self, now: Callable[[], float], *, is_kept: bool) -> None:
        self.lines: list[str] = []
        self.is_kept = is_kept
        self._now = now

    def say(self, who: str, text: str) -> None:
        if self.is_kept:
            self.lines.append(f"{self._now():12.6f}  {who:<12} {text}")


class TraceLogs(logging.Handler):
    """Record log lines, with the name of the machine."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self._trace = trace

    def emit(self, record: logging.LogRecord) -> None:
        machine = MACHINE.get()
        more = {k: v for k, v in vars(record).items() if k not in _PLAIN and k != "message"}
        fields = " ".join(f"{key}={value}" for key, value in sorted(more.items()))
        who = machine.name if machine is not None else "-"
        self._trace.say(who, f"{record.levelname.lower()}: {record.getMessage()} {fields}".rstrip())
