"""What the node half wants of a GPU driver; ``nvml.py`` is the real one (pure)."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class PhysicalCard:
    """A card that answers.

    ``reserved_mib`` is what the driver keeps for itself and ``recovery_action`` NVML's number for
    what it advises to do with the card (0: nothing); None where the driver does not say.
    ``rows_failed``: memory rows are broken that could not be remapped.
    """

    uuid: str
    minor: int
    model: str
    memory_mib: int
    reserved_mib: int | None = None
    is_mig: bool = False
    recovery_action: int | None = None
    rows_failed: bool = False


@dataclass(frozen=True, slots=True)
class UnreadableCard:
    """A card that the driver counts and that does not answer; ``uuid`` may be empty.

    ``is_definite``: the driver says that it is lost or has to be reset, so it need not be asked
    again. ``is_silent``: the driver has not even refused, it hangs when asked for this card.
    ``is_duplicate``: it stands for several cards that answer and have the same UUID.
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
    """Something happened to a card: an XID (0 for another event), a reason to look at it."""

    uuid: str
    xid: int = 0


class Backend(Protocol):
    """All calls block. Those for different cards may be made at once, each in a thread of its own.

    ``answered`` rises with every answer of the driver, so that slow can be told from stuck.
    """

    answered: int

    @property
    def heard(self) -> frozenset[str]:
        """The UUIDs of the cards whose events the driver delivers."""
        ...

    def count(self) -> int:
        """How many cards the driver counts; their positions are from 0 on, in its order.

        Raises DriverReplaced where the library is not the driver's any more, DriverError where
        there is no answer.
        """
        ...

    def card(self, position: int) -> Seen:
        """The card at ``position``. Raises DriverReplaced, and no error of this card alone."""
        ...

    def next_event(self, seconds: float) -> CardEvent | None:
        """The next event of any card; None if there is none for ``seconds``.

        Cards that ``card`` has shown are listened to from the next call on; no card is asked
        anything while it is. Raises DriverError; the next call begins anew.
        """
        ...


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """What one process has of a card; ``used_bytes`` is None where the driver does not tell."""

    pid: int
    used_bytes: int | None


class ProcessSource(Protocol):
    """As ``Backend``, for what uses the cards."""

    def count(self) -> int:
        """How many cards the driver counts. Raises DriverError."""
        ...

    def processes(self, position: int) -> tuple[str, tuple[ProcessMemory, ...] | None]:
        """A card's UUID and the processes on it; None where the driver does not tell.

        Process IDs are those of the host. The UUID is empty where not even that is told.
        """
        ...
