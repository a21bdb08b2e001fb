"""The interface to a GPU driver; ``nvml.py`` is the real one (pure)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final, Protocol

NO_MINOR: Final = -1  # the driver's number of the GPU is not known


class Query(StrEnum):
    """The queries of NVML that a GPU is offered without: all but those for UUID and memory."""

    RESERVED = "nvmlDeviceGetMemoryInfo_v2"
    MINOR = "nvmlDeviceGetMinorNumber"
    MODEL = "nvmlDeviceGetName"
    MIG = "nvmlDeviceGetMigMode"
    RECOVERY_ACTION = "nvmlDeviceGetFieldValues"
    REMAPPED_ROWS = "nvmlDeviceGetRemappedRows"
    PENDING_PAGES = "nvmlDeviceGetRetiredPagesPendingStatus"
    ECC_ERRORS = "nvmlDeviceGetTotalEccErrors"


@dataclass(frozen=True, slots=True)
class PhysicalCard:
    """A GPU that answers.

    ``reserved_mib`` is the memory that the driver reserves and ``recovery_action`` NVML's number of
    the action that it advises (0: none); None where the driver does not report it.
    ``rows_failed``: broken memory rows could not be remapped. ``repair_pending``: a repair of its
    memory waits for a reset. ``uncorrected_errors`` of its memory are counted since the driver was
    loaded or the GPU was reset. The last two are asked only of a driver that advises no action.

    ``why_no_limit``: why the driver cannot limit how much of its memory a container uses; empty if
    it can. ``hides_limits``: why it does not tell this program the limits; empty if it does.

    ``failed`` has the driver's error for each query that it supports and that has failed. What such
    a query would have shown is as if the driver did not report it: NO_MINOR, no model, not in MIG
    mode.
    """

    uuid: str
    minor: int
    model: str
    memory_mib: int
    reserved_mib: int | None = None
    is_mig: bool = False
    recovery_action: int | None = None
    rows_failed: bool = False
    repair_pending: bool = False
    uncorrected_errors: int = 0
    why_no_limit: str = "the driver was not asked"
    hides_limits: str = ""
    failed: Mapping[Query, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class UnreadableCard:
    """A GPU that the driver counts and that does not answer; ``uuid`` may be empty.

    ``is_definite``: the driver reports that it is lost or must be reset, so another check will not
    help. ``is_silent``: the call for this GPU hangs. ``is_duplicate``: it stands for several GPUs
    that answer and have the same UUID.
    """

    position: int
    uuid: str
    why: str
    is_definite: bool = False
    is_silent: bool = False
    is_duplicate: bool = False


Seen = PhysicalCard | UnreadableCard


@dataclass(frozen=True, slots=True)
class CardEvent:
    """An event of a GPU: an XID, or 0 for another event that is a reason to check the GPU."""

    uuid: str
    xid: int = 0


class Backend(Protocol):
    """All calls block. Calls for different GPUs may be made at once, each in its own thread.

    ``answered`` rises with every answer of the driver, which distinguishes slow from stuck.
    """

    answered: int

    @property
    def heard(self) -> frozenset[str]:
        """The UUIDs of the GPUs whose events the driver delivers."""
        ...

    def count(self) -> int:
        """Return the number of GPUs; their positions start at 0, in the driver's order.

        Raises DriverReplaced where the library does not belong to the driver, DriverError where
        there is no answer.
        """
        ...

    def card(self, position: int) -> Seen:
        """Return the GPU at ``position``. Raises DriverReplaced, but no error of only this GPU."""
        ...

    def next_event(self, seconds: float) -> CardEvent | None:
        """Return the next event of any GPU; None if no event occurs for ``seconds``.

        GPUs that ``card`` has returned are included from the next call on; no GPU is queried during
        the wait. Raises DriverError; the next call starts again.
        """
        ...


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Memory of one process on a GPU; ``used_bytes`` is None where it is not reported."""

    pid: int
    used_bytes: int | None


@dataclass(frozen=True, slots=True)
class UtilizationSample:
    """Percent of a GPU's multiprocessors (SM) that a process used shortly before ``at_us``.

    That is in microseconds since the Unix epoch.
    """

    pid: int
    at_us: int
    sm_percent: int


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """What the driver has about the memory of one cgroup on a GPU.

    ``hard_bytes`` is None where no limit is set, ``used_bytes`` where it is not reported.
    ``soft_bytes`` are reserved. ``why_unknown`` is empty if the driver was asked and has answered;
    otherwise nothing is known.
    """

    hard_bytes: int | None = None
    used_bytes: int | None = None
    soft_bytes: int = 0
    why_unknown: str = ""


class ProcessSource(Protocol):
    """Like ``Backend``, for the processes on the GPUs and the limits of cgroups."""

    def count(self) -> int:
        """Return the number of GPUs. Raises DriverError."""
        ...

    def uuid(self, position: int) -> str:
        """Return a GPU's UUID; empty where it is not known."""
        ...

    def processes(self, position: int) -> tuple[ProcessMemory, ...] | None:
        """Return a GPU's processes; None where the driver does not report them.

        Process IDs are those of the host.
        """
        ...

    def samples(self, position: int) -> tuple[UtilizationSample, ...]:
        """Return the samples since the last call for this GPU, of processes that used it.

        There are none at the first call, and where the driver does not report any.
        """
        ...

    def limit(self, position: int, cgroup: Path) -> MemoryLimit:
        """Return what the driver has about the memory of a cgroup, by its directory."""
        ...
