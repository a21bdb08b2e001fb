"""A stand-in for the NVIDIA driver's library; its cards are described in a text file.

The real ``pynvml`` loads it like NVIDIA's, so all code above the driver runs unchanged. A program
sees the cards if it is started with the variables of ``environment``.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from localcluster import cgroups
from localcluster.errors import BuildError, HostError, UsageError

SONAME: Final = "libnvidia-ml.so.1"
STATE_VARIABLE: Final = "NVML_STANDIN_STATE"
NO_LIMIT: Final = 2**64 - 1
"""The hard limit, in bytes, by which the driver says that a cgroup has none."""
_LIMITS: Final = "limits"
_SOURCE: Final = Path(__file__).with_name("nvml.c")
_FLAGS: Final = ("-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", f"-Wl,-soname,{SONAME}")


@dataclass(frozen=True, slots=True)
class CardSpec:
    """One card of the stand-in; without ``minor``, its place in the list is its minor number.

    The codes are NVML's return codes: ``error`` for every call that needs an answer from the card,
    ``handle_error`` also for finding it, ``memory_error`` for reading its memory.
    ``recovery_action`` is the driver's advice; None for a driver too old to give any. ``hangs``: a
    call for this card does not return until the file changes that. ``rows_pending`` and
    ``pages_pending``: a repair of its memory waits for a reset; ``uncorrected`` counts errors of
    its memory. ``failing`` is the function of NVML that fails for this card alone.
    """

    uuid: str
    model: str = "NVIDIA Stand-in"
    mem_mib: int = 16276
    reserved_mib: int = 0
    minor: int | None = None
    mig: bool = False
    memory_v2: bool = True
    error: int = 0
    handle_error: int = 0
    memory_error: int = 0
    recovery_action: int | None = 0
    rows_failed: bool = False
    rows_pending: bool = False
    pages_pending: bool = False
    uncorrected: int = 0
    failing: str = ""
    events: bool = True
    hangs: bool = False


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """What a cgroup may use of a card, in bytes: what is reserved, and the most.

    ``cgroup`` is its path below the root of its hierarchy.
    """

    uuid: str
    cgroup: str
    soft: int
    hard: int


def build(cache: Path, *, limits_memory: bool = False) -> Path:
    """Compile the library below ``cache`` unless it exists; return its folder.

    ``limits_memory``: it has the functions that limit a cgroup's memory, as since driver R615.

    Raises HostError without a C compiler, BuildError with the compiler's output.
    """
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise HostError("no C compiler for the NVML stand-in: install gcc, or name one in CC")
    flags = (*_FLAGS, "-DMEMORY_LIMITS") if limits_memory else _FLAGS
    key = hashlib.sha256(_SOURCE.read_bytes() + repr((compiler, flags)).encode()).hexdigest()[:16]
    folder = cache / f"nvml-{key}"
    if (folder / SONAME).exists():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        made = Path(scratch) / SONAME
        argv = [compiler, *flags, "-o", str(made), str(_SOURCE)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BuildError(f"{compiler} could not build {_SOURCE.name}: {done.stderr[-2000:]}")
        folder.mkdir(exist_ok=True)
        made.replace(folder / SONAME)
    return folder


def environment(library: Path, state: Path) -> dict[str, str]:
    """Return the variables with which a program sees the cards of ``state``."""
    return {"LD_LIBRARY_PATH": str(library), STATE_VARIABLE: str(state)}


def write_state(
    path: Path,
    cards: Iterable[CardSpec],
    *,
    init: int = 0,
    delay_ms: int = 0,
    version: str = "999.1",
    fail: Mapping[str, int] | None = None,
    events: Iterable[Mapping[str, object]] = (),
    processes: Iterable[Mapping[str, object]] = (),
    samples: Iterable[Mapping[str, object]] = (),
) -> None:
    """Replace the whole machine that the stand-in shows, in one step.

    ``init`` is the NVML code with which every call fails, ``delay_ms`` how long each call takes,
    ``fail`` the code with which single functions of NVML fail, by name. ``events`` have ``seq``
    (upwards from 1), ``uuid``, ``type`` and ``data``. ``processes`` have ``uuid``, ``pid``,
    ``used_mib`` (-1 if the driver does not tell) and optionally ``graphics``, or ``uuid`` and the
    ``code`` with which reading them fails. ``samples`` of what processes use of a card's processors
    have ``uuid``, ``pid``, ``at_us`` (since the Unix epoch) and ``sm`` (percent).
    """
    words: dict[str, object] = {"init": init, "delay_ms": delay_ms, "version": version}
    lines = [_line("driver", words, *(f"fail={name}:{n}" for name, n in (fail or {}).items()))]
    for place, card in enumerate(cards):
        words = {
            "uuid": card.uuid,
            "model": card.model,
            "minor": place if card.minor is None else card.minor,
            "mem_mib": card.mem_mib,
            "reserved_mib": card.reserved_mib,
            "mig": int(card.mig),
            "memory_v2": int(card.memory_v2),
            "error": card.error,
            "handle_error": card.handle_error,
            "memory": card.memory_error,
            "recovery": card.recovery_action or 0,
            "recovery_supported": int(card.recovery_action is not None),
            "rows_failed": int(card.rows_failed),
            "rows_pending": int(card.rows_pending),
            "pages_pending": int(card.pages_pending),
            "uncorrected": card.uncorrected,
            "failing": card.failing,
            "events": int(card.events),
            "hangs": int(card.hangs),
        }
        lines.append(_line("card", words))
    lines += [_line("event", event) for event in events]
    lines += [_line("process", process) for process in processes]
    lines += [_line("sample", sample) for sample in samples]
    lines.append("end\n")
    fresh = path.with_name(path.name + ".new")
    fresh.write_text("".join(lines))
    fresh.replace(path)


def read_minors(path: Path) -> dict[str, int]:
    """Return the minor number of each card in a state file, by UUID."""
    lines = (line.split("\t") for line in path.read_text().splitlines())
    cards = (dict(word.split("=", 1) for word in words) for kind, *words in lines if kind == "card")
    return {card["uuid"]: int(card["minor"]) for card in cards}


def read_limits(folder: Path, hierarchy: Path | None = None) -> list[MemoryLimit]:
    """Return the limits that hold now, by the table in the folder of the state file.

    A cgroup that was removed has none. ``hierarchy`` is where the cgroups are mounted, by default
    the unified hierarchy of this machine. Raises HostError without one.
    """
    path = folder / _LIMITS
    root = hierarchy or cgroups.unified()
    found: dict[tuple[str, str], MemoryLimit] = {}
    *rows, _ = path.read_text().split("\n") if path.exists() else ("",)
    for row in rows:
        uuid, number, soft, hard, cgroup = row.split("\t", 4)
        try:
            is_there = (root / cgroup.lstrip("/")).stat().st_ino == int(number)
        except FileNotFoundError:
            continue
        if is_there:
            found[uuid, cgroup] = MemoryLimit(uuid, cgroup, int(soft), int(hard))
    return [each for each in found.values() if (each.soft, each.hard) != (0, NO_LIMIT)]


def hard_limits(folder: Path, uuid: str, hierarchy: Path | None = None) -> int:
    """Return the sum of a card's hard limits that hold now, in bytes; see ``read_limits``."""
    return sum(each.hard for each in read_limits(folder, hierarchy) if each.uuid == uuid)


def _line(kind: str, words: Mapping[str, object], *more: str) -> str:
    shown = [*(f"{key}={value}" for key, value in words.items()), *more]
    if any(character in word for word in shown for character in "\t\r\n"):
        raise UsageError(f"a {kind} of the NVML stand-in has a tab or line end in it: {shown}")
    return "\t".join([kind, *shown]) + "\n"
