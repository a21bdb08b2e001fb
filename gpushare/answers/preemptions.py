"""What is known about evictions for a Pending pod or gang, as JSON and as a sentence (pure)."""

from collections.abc import Collection
from dataclasses import dataclass
from math import ceil
from typing import Final, Protocol

import msgspec

from gpushare.text.counted import counted
from gpushare.text.cut import cut_name
from gpushare.text.listed import listed

NAMED: Final = 3  # victims in a sentence


@dataclass(frozen=True, slots=True)
class PreemptionFacts:
    """The extender evicts ``victims``, as namespace and name, for a pod or its gang.

    ``begun`` is false before the first eviction. ``ended`` of them are gone. ``seconds_left`` is
    what is left of the longest grace period of those that were evicted and still run; None if it is
    not known, as before an eviction is seen.
    """

    victims: tuple[tuple[str, str], ...]
    ended: int = 0
    seconds_left: float | None = None
    begun: bool = False

    @property
    def lasting(self) -> tuple[object, ...]:
        """Return what of it does not change with time."""
        return self.victims, self.ended, self.begun


class PreemptionStates(Protocol):
    @property
    def count(self) -> int:
        """Return for how many pods and gangs pods are being evicted now."""

    def of(self, uid: str) -> PreemptionFacts | None:
        """Return what is evicted for a pod or its gang; None if nothing is."""

    def victims_on(self, node: str) -> Collection[str]:
        """Return the uids of the pods that are, or are about to be, evicted from a node."""


class NoPreemptions:
    """Knows of no evictions. Implements PreemptionStates."""

    count = 0

    def of(self, uid: str) -> PreemptionFacts | None:  # noqa: ARG002
        return None

    def victims_on(self, node: str) -> Collection[str]:  # noqa: ARG002
        return ()


NO_PREEMPTIONS: Final = NoPreemptions()


class Victim(msgspec.Struct):
    """The names are empty if the caller may not see the pod's namespace."""

    namespace: str
    name: str


class Evicting(msgspec.Struct, rename="camel", omit_defaults=True):
    """``count`` pods are evicted, of which ``ended`` are gone. The fields are of PreemptionFacts.

    ``seconds_left`` is absent where it is not known.
    """

    count: int
    ended: int = 0
    begun: bool = False
    seconds_left: int | None = None
    pods: list[Victim] = []


def view(facts: PreemptionFacts) -> Evicting:
    """Return the facts as JSON."""
    left = facts.seconds_left
    found = without_details(facts)
    found.seconds_left = None if left is None else max(0, ceil(left))
    found.pods = [Victim(*each) for each in facts.victims]
    return found


def without_details(facts: PreemptionFacts) -> Evicting:
    """Return what may be told to everybody who may see the pod, and does not change with time."""
    return Evicting(len(facts.victims), facts.ended, facts.begun)


def text(found: Evicting) -> str:
    """Return it as a sentence that begins with a small letter.

    It names at most NAMED pods, without those whose names are empty.
    """
    does = "evicting" if found.begun else "about to evict"
    names = _names(found)
    of = f"{counted(found.count, 'pod')} of lower priority for it"
    return f"{does} {of}{f' ({names})' if names else ''}{_progress(found)}."


def details(found: Evicting) -> str:
    """Return what ``without_details`` has left out, as a sentence; empty if nothing."""
    names, left = _names(found), _time_left(found)
    parts = [part for part in (f"these are {names}" if names else "", left) if part]
    said = "; ".join(parts)
    return f"{said[0].upper()}{said[1:]}." if said else ""


def _names(found: Evicting) -> str:
    """Return ``ml/a, ml/b``, or with more pods ``ml/a, ml/b, ml/c and 5 more``; empty if none."""
    names = [cut_name(f"{each.namespace}/{each.name}") for each in found.pods if each.name]
    return listed(names, NAMED, count=found.count)


def _time_left(found: Evicting) -> str:
    """Return what is left of the grace period; empty if that is not known, or all have ended."""
    if found.seconds_left is None or found.ended >= found.count:
        return ""
    if not found.seconds_left:
        return "their grace period is over"
    return f"{found.seconds_left} s of their grace period left"


def _progress(found: Evicting) -> str:
    left = _time_left(found)
    if found.ended >= found.count:
        ended = "it has ended" if found.count == 1 else "all have ended"
    elif found.ended:
        ended = f"{found.ended} of {found.count} {'has' if found.ended == 1 else 'have'} ended"
    else:
        ended = ""
    return "".join(f"; {part}" for part in (ended, left) if part)
