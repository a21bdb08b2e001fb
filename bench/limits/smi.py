"""What nvidia-smi says about the processes on the GPUs."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from statistics import fmean
from typing import Final

_LONGEST_SECONDS: Final = 20.0


class SmiFailed(Exception):
    """nvidia-smi is missing, or has not answered as expected."""


async def memory_mib() -> dict[int, int]:
    """Return MiB by process ID, of those whose memory it tells."""
    text = await _run("--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits")
    pairs = (line.split(", ") for line in text.splitlines())
    return {int(pair[0]): int(pair[1]) for pair in pairs if all(map(str.isdecimal, pair))}


async def sm_percent() -> Mapping[int, float]:
    """Return the mean SM utilization in three seconds, by process ID."""
    return utilization(await _run("pmon", "-c", "3", "-s", "um"))


def utilization(text: str) -> dict[int, float]:
    """Return the means from what ``nvidia-smi pmon`` prints; its columns depend on its version."""
    found: dict[int, list[int]] = defaultdict(list)
    columns: list[str] = []
    for line in text.splitlines():
        words = line.split()
        if line.startswith("#") and "pid" in words:
            columns = words[1:]
        elif not line.startswith("#"):
            cells = dict(zip(columns, words, strict=False))
            if cells.get("pid", "").isdecimal() and cells.get("sm", "").isdecimal():
                found[int(cells["pid"])].append(int(cells["sm"]))
    return {pid: fmean(percents) for pid, percents in found.items()}


async def _run(*words: str) -> str:
    try:
        process = await asyncio.create_subprocess_exec(
            "nvidia-smi", *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
    except OSError as err:
        raise SmiFailed(f"nvidia-smi: {err.strerror}") from err
    try:
        out, _ = await asyncio.wait_for(process.communicate(), _LONGEST_SECONDS)
    except TimeoutError as err:
        process.kill()
        raise SmiFailed(f"nvidia-smi has not answered within {_LONGEST_SECONDS:g} s") from err
    text = out.decode(errors="replace")
    if process.returncode:
        raise SmiFailed(f"nvidia-smi ended with status {process.returncode}: {text.strip()[:200]}")
    return text
