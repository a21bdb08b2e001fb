"""Memory of the NVML stand-in's GPU, for the stand-ins of frameworks beside this file.

GPU_STANDIN_FAULTS has words: ``broken`` (nothing can be allocated), ``unlimited`` (a framework does
not limit itself), ``context`` (a process takes much memory beside), ``smi`` (nvidia-smi tells
something else), ``hidden`` (the driver tells no process).
"""

import atexit
import fcntl
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

MIB = 2**20
TOTAL_MIB = 16276
STATE = Path(os.environ["NVML_STANDIN_STATE"])
FAULTS = frozenset(os.environ.get("GPU_STANDIN_FAULTS", "").split(","))
CONTEXT_MIB = 4000 if "context" in FAULTS else 300
GPU = "uuid=GPU-a"
OWN = f"\tpid={os.getpid()}\t"


class Pool:
    """What this process has; a framework's error says ``full`` in its own way."""

    def __init__(self, limit_mib: float, full: Callable[[], Exception]) -> None:
        self._limit_mib = TOTAL_MIB if "unlimited" in FAULTS else limit_mib
        self._full = full
        self.used_mib = 0
        atexit.register(show)

    def allocate(self, mib: int) -> None:
        if "broken" in FAULTS:
            raise RuntimeError("an illegal memory access was encountered")
        if self.used_mib + mib > self._limit_mib:
            raise self._full()
        self.used_mib += mib
        show(self.used_mib)

    def free(self) -> None:
        self.used_mib = 0
        show(0)


def show(used_mib: int | None = None, sm: int | None = None) -> None:
    """Let the driver show this process, or not."""
    with STATE.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lines = [line for line in STATE.read_text().splitlines(keepends=True) if OWN not in line]
        own = []
        if used_mib is not None and "hidden" not in FAULTS:
            own = [f"process\t{GPU}{OWN}used_mib={used_mib + CONTEXT_MIB}\n"]
            if sm is not None:
                own.append(f"sample\t{GPU}{OWN}at_us={time.time_ns() // 1000}\tsm={sm}\n")
        fresh = STATE.with_suffix(f".{os.getpid()}")
        fresh.write_text("".join([*lines[:-1], *own, lines[-1]]))
        fresh.replace(STATE)


def work(used_mib: int) -> None:
    """Use the processors for the percentage that is the last argument of the program."""
    time.sleep(0.02)
    show(used_mib, int(sys.argv[-1]))
