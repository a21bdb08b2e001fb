"""Signals that end a command, and work that they must not interrupt."""

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
    """Let the first of SIGINT, SIGTERM and SIGHUP end this process through every `finally`.

    Later ones are ignored: a second signal between the first one's exception and the cleanup that
    it causes would skip the cleanup.
    """
    for number in _ALL:
        signal.signal(number, _end)


def _end(number: int, _: FrameType | None) -> NoReturn:
    for each in _ALL:
        signal.signal(each, _nothing)
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + number)


def _nothing(_: int, __: FrameType | None) -> None:
    """Ignore signals that are already pending: Python reports those whose handler is SIG_IGN."""


def run_command(name: str, command: Callable[[], int]) -> int:
    """Run a command and return its exit code; our errors and the user's signals print one line."""
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

    A terminal sends one Ctrl-C to the whole process group, and `uv run` sends it once more.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _nothing) for number in _ALL}
    for number in _ALL:  # inherited by the commands that are run meanwhile
        signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
