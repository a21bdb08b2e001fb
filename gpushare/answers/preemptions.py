"""What is known about evictions for a Pending pod or gang (pure)."""

from dataclasses import dataclass
from typing import Final, Protocol


@dataclass(frozen=True, slots=True)
class PreemptionFacts:
    """The extender evicts ``victims``, as namespace and name, for a pod or its gang.

    ``ended`` of them are gone. ``seconds_left`` is what is left of the longest grace period of
    those that were evicted and still run; None before the first eviction.
    """

    victims: tuple[tuple[str, str], ...]
    ended: int = 0
    seconds_left: float | None = None


class PreemptionStates(Protocol):
    def of(self, uid: str) -> PreemptionFacts | None:
        """Return what is evicted for a pod or its gang; None if nothing is."""


class NoPreemptions:
    """Knows of no evictions. Implements PreemptionStates."""

    def of(self, uid: str) -> PreemptionFacts | None:  # noqa: ARG002
        return None


NO_PREEMPTIONS: Final = NoPreemptions()
