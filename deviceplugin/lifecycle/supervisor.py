"""The container's first process: it restarts the plugin at once after any crash.

An ended container is restarted after two seconds or more, and the kubelet rejects the pods that it
admits meanwhile. A fork of a process that has imported everything serves 0.1 s after a kill. The
first process itself never starts a thread, an event loop or gRPC: none of them survives a fork.
"""

import ctypes
import logging
import os
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from typing import Final

log = logging.getLogger(__name__)

MAX_RESTARTS: Final = 5
WITHIN_SECONDS: Final = 60.0
"""After more than MAX_RESTARTS in this time the container ends, and the kubelet restarts it."""

REPLACE: Final = signal.SIGUSR1
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, REPLACE)
_SET_PARENT_DEATH_SIGNAL: Final = 1  # PR_SET_PDEATHSIG, prctl(2)
_FAILED: Final = 1
_SIGNALLED: Final = 128  # added to a signal's number, as shells do


def supervise(work: Callable[[int], int]) -> int:
    """Run ``work`` in a process of its own until it ends in order; return its exit code.

    ``work`` gets the number of its processes that were started earlier, and returns an exit code.
    Only 1 is a crash. SIGTERM and SIGINT are passed on. When a process calls ``ask_for_another``, a
    second one is started next to it.
    """
    return _Supervisor(work).run()


def ask_for_another() -> None:
    """Have another process started next to this one, which is about to end."""
    os.kill(os.getppid(), REPLACE)


class _Supervisor:
    def __init__(self, work: Callable[[int], int]) -> None:
        self._work = work
        self._begun = 0
        self._processes: set[int] = set()
        self._began: deque[float] = deque(maxlen=MAX_RESTARTS)
        self._is_stopping = False

    def run(self) -> int:
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        self._start()
        code = 0
        while self._processes:
            number = signal.sigwait(_SIGNALS)
            if number == signal.SIGCHLD:
                code = self._reap(code)
            elif number == REPLACE:
                self._start_again("a part of the plugin has failed")
            else:
                self._is_stopping = True
                for process in self._processes:
                    os.kill(process, number)
        return code

    def _reap(self, code: int) -> int:
        """Reap every process that has ended; return the exit code of the last."""
        while self._processes:
            process, status = os.waitpid(-1, os.WNOHANG)
            if not process:
                break
            if process not in self._processes:
                continue  # an orphan that was reparented to the container's first process
            self._processes.discard(process)
            code = os.waitstatus_to_exitcode(status)
            is_crash = code == _FAILED or code < 0
            if code < 0:
                code = _SIGNALLED - code
            if is_crash and not self._processes:
                self._start_again(f"the plugin ended with {code}")
        return code

    def _start_again(self, why: str) -> None:
        now = time.monotonic()
        is_too_often = len(self._began) == MAX_RESTARTS and now - self._began[0] < WITHIN_SECONDS
        if self._is_stopping or is_too_often:
            return
        self._began.append(now)
        log.error("starting another process", extra={"why": why})
        self._start()

    def _start(self) -> None:
        first = os.getpid()
        process = os.fork()
        if process:
            self._processes.add(process)
            self._begun += 1
            return
        code = _FAILED
        try:
            _die_with(first)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            code = self._work(self._begun)
        except BaseException:  # noqa: BLE001 - nothing may reach the code of the first process
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


def _die_with(parent: int) -> None:
    """End this process when ``parent`` ends, unless the whole container is stopped anyway."""
    ctypes.CDLL(None, use_errno=True).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(_FAILED)
