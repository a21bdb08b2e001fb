"""What the node half wants of a GPU driver; ``nvml.py`` is the real one (pure)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class PhysicalCard:
    """``reserved_mib`` is what the driver keeps for itself; None where it does not say."""

    uuid: str
    minor: int
    model: str
    memory_mib: int
    reserved_mib: int | None = None
    is_mig: bool = False


@dataclass(frozen=True, slots=True)
class UnreadableCard:
    """A card that the driver counts and that does not answer; ``uuid`` may be empty."""

    position: int
    uuid: str
    why: str


Seen = PhysicalCard | UnreadableCard


class Backend(Protocol):
    def cards(self) -> tuple[Seen, ...]:
        """All cards that the driver counts, in its order.

        Raises DriverError where it gives no answer about any of them.
        """
        ...


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """What one process has of a card; ``used_bytes`` is None where the driver does not tell."""

    pid: int
    used_bytes: int | None


class ProcessSource(Protocol):
    def processes(self) -> Mapping[str, tuple[ProcessMemory, ...] | None]:
        """UUID to the processes on that card; None where the driver does not tell.

        Process IDs are those of the host. Raises DriverError if no card answers at all.
        """
        ...
