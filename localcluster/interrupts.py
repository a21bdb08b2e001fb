"""Signals that end a command, and work that they must not cut short."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from localcluster.errors import LocalClusterError

_ALL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def end_by_exception() -> None:
    """Let SIGTERM and SIGHUP end this process as Ctrl-C does: through every `finally`."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)


def _end(number: int, _: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def run_command(name: str, command: Callable[[], int]) -> int:
    """Run a command to its exit code: a line and no traceback for what is ours, or the user's."""
    end_by_exception()
    try:
        return command()
    except LocalClusterError as problem:
        for line in (problem, *getattr(problem, "__notes__", ())):
            print(f"{name}: {line}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ignore the signals that end a command: a second Ctrl-C must not leave half a cluster.

    A terminal sends one Ctrl-C to the whole process group, and `uv run` passes it on once more.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _ALL}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
