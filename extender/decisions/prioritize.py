"""prioritize: the order of the nodes that filter has left, as scores (pure).

kube-scheduler adds ``score * weight * 10`` to the scores of its own plugins; the configured weight
is 1 as shipped. It does not clamp an extender's scores, and picks at random among equal totals
(schedule_one.go, prioritizeNodes and selectHost). So this module chooses for each pod how much our
order counts: docs/scheduling.md.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from extender.decisions.attempts import NONE_TRIED
from gpushare.placement.verdict_cache import Verdicts

FEW: Final = 8  # below 1 / FEW of all nodes, sorting them is cheaper than a pass over all
STEP: Final = 150  # 1500 points: all of kube-scheduler's own scores together are 1400 at most
FOR_THE_BEST: Final = 1
MOST: Final = 10


@dataclass(frozen=True, slots=True)
class Prioritized:
    """Nodes, best first, and the score of each."""

    order: Sequence[str]
    scores: Sequence[int]


def in_order(
    nodes: Sequence[str], verdicts: Verdicts, last: Mapping[str, int] = NONE_TRIED
) -> list[str]:
    """Return each of ``nodes`` once, best first, then those in ``last``, then the unfit ones.

    Nodes with a higher number in ``last`` come later.
    """
    fits, asked = verdicts.fits, set(nodes)
    if len(asked) * FEW < len(fits):
        fitting = [rank[3] for rank in sorted(fits[name] for name in asked if name in fits)]
    else:
        fitting = [name for _, _, _, name in verdicts.ranks if name in asked]
    order = fitting
    if last:
        order = [name for name in fitting if name not in last]
        order += sorted((name for name in fitting if name in last), key=last.__getitem__)
    if len(order) < len(asked):
        order += sorted(asked.difference(fits))
    return order


def deciding(count: int) -> range:
    """Return scores for so many nodes in order, so far apart that the order decides.

    Random picks among equals and kube-scheduler's preference for empty nodes would undo packing.
    """
    return range((count - 1) * STEP, -1, -STEP)


def weighing(
    order: Sequence[str], verdicts: Verdicts, last: Mapping[str, int] = NONE_TRIED
) -> list[int]:
    """Return scores from 0 to 10 for nodes ``in_order``, like those of one plugin among others.

    A score is that of the rank, plus one for the best node. Equal nodes have equal scores, so that
    kube-scheduler chooses between them.
    """

    def below_zero(name: str) -> int:
        rank = verdicts.fits.get(name)
        if rank is None or rank[0] or name in last:
            return 0
        return -int(0.5 + min(MOST, max(0.0, -rank[1])))

    # Scores only fall along the order, so a binary search finds each step.
    found: list[int] = []
    while len(found) < len(order):
        score = below_zero(order[len(found)])
        end = bisect_right(order, score, lo=len(found), key=below_zero)
        found += [-score] * (end - len(found))
    if found:
        found[0] += FOR_THE_BEST
    return found
