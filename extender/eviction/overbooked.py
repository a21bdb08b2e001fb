"""Which pod goes when a card was given away twice (pure).

Two leaders' writes never overlap, but for a process that is stopped between its last look at the
clock and the first byte, or an API server that carries a request out long after its time limit.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from gpushare.contract import ANNOTATION_ASSUME_TIME, ANNOTATION_CARD_UNITS, ANNOTATION_CARDS
from gpushare.objects.model import Pod


@dataclass(frozen=True, slots=True)
class Holder:
    """A bound, live pod and its units of the card."""

    pod: Pod
    units: int


@dataclass(frozen=True, slots=True)
class _Decided:
    assume_time_ns: int
    size: int


def to_evict(card: str, units: int, holders: Iterable[Holder]) -> Pod | None:
    """The pod whose end would mend ``card`` of ``units``; None where nothing is to be mended.

    Every decision says how large the card was then. If all fit into the least that any of them
    saw, the card has shrunk under them: nobody was promised anything twice, and nobody is to go.
    The least, for a decision may be forged: none can say for the others that there was more room.
    Pods without a decision of ours do not count: they were given nothing, by no leader.

    It is the newest by assume time, then by uid, of those that have never run; one that something
    makes anew before one that nothing does. Never one that has run. Two leaders have written two of
    these times, each by its machine's wall clock: where those run apart the other pod goes.
    """
    staying = [each for each in holders if not _is_leaving(each.pod)]
    decided = {each.pod.uid: found for each in staying if (found := _decided(each.pod, card))}
    if not decided:
        return None
    size = min(found.size for found in decided.values())
    given = [each for each in staying if each.pod.uid in decided]
    if sum(each.units for each in given) <= max(size, units):
        return None
    able = [each.pod for each in given if not _has_begun(each.pod)]
    return max(
        able,
        key=lambda pod: (pod.has_controller, decided[pod.uid].assume_time_ns, pod.uid),
        default=None,
    )


def _is_leaving(pod: Pod) -> bool:
    """It is on its way out and has never run: its units are as good as free."""
    return pod.metadata.deletion_timestamp is not None and not _has_begun(pod)


def _has_begun(pod: Pod) -> bool:
    return pod.has_started or pod.runs or pod.status.phase not in {None, "", "Pending"}


def _decided(pod: Pod, card: str) -> _Decided | None:
    """When the pod was decided on, and how large the card was; None where that cannot be read."""
    cards = pod.annotations.get(ANNOTATION_CARDS, "").split(",")
    sizes = pod.annotations.get(ANNOTATION_CARD_UNITS, "").split(",")
    at = pod.annotations.get(ANNOTATION_ASSUME_TIME, "")
    if card not in cards or len(sizes) != len(cards):
        return None
    size = sizes[cards.index(card)]
    if not all(text.isascii() and text.isdigit() and len(text) < 20 for text in (at, size)):  # noqa: PLR2004
        return None
    return _Decided(int(at), int(size))
