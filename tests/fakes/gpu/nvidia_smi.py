"""A stand-in for nvidia-smi's tables of processes."""

import re
import sys
import time

from standin_memory import FAULTS, STATE

WRONG = 100 if "smi" in FAULTS else 0
PATIENCE_SECONDS = 10.0
BOTH = 2


def lines(pattern: str) -> list[tuple[int, int]]:
    found = re.findall(pattern, STATE.read_text(), re.MULTILINE)
    return [(int(pid), int(amount)) for pid, amount in found]


def samples(since_us: int) -> list[tuple[int, int]]:
    """Return the percentages by process ID, once two processes have newer ones."""
    until = time.monotonic() + (0 if "hidden" in FAULTS else PATIENCE_SECONDS)
    while True:
        text = STATE.read_text()
        found = re.findall(r"^sample\t.*\tpid=(\d+)\tat_us=(\d+)\tsm=(\d+)$", text, re.MULTILINE)
        newer = [(int(pid), int(sm)) for pid, at_us, sm in found if int(at_us) > since_us]
        if len(newer) >= BOTH or time.monotonic() > until:
            return newer
        time.sleep(0.01)


if sys.argv[1] == "pmon":
    columns = "jpg    ofa     fb   ccpm    command"
    sys.stdout.write(f"# gpu         pid   type     sm    mem    enc    dec    {columns}\n")
    sys.stdout.write("# Idx           #    C/G      %      %      %      %      %\n")
    for pid, sm in samples(time.time_ns() // 1000):
        used = abs(sm - WRONG)
        sys.stdout.write(f"    0  {pid}     C     {used}      1      -      -      -\n")
else:
    for pid, mib in lines(r"^process\t.*\tpid=(\d+)\tused_mib=(\d+)$"):
        sys.stdout.write(f"{pid}, {mib + WRONG}\n")
