"""prioritize: the order of the nodes that filter has left, as scores (pure).

kube-scheduler adds ``score * weight * 10`` to what its own plugins say, with the weight of its
configuration, which is 1 as shipped. It does not clamp what an extender says, and picks among equal
totals by chance (schedule_one.go, prioritizeNodes and selectHost). So how much our order counts is
chosen here, for each pod: docs/scheduling.md.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from extender.decisions.attempts import NOWHERE
from gpushare.placement.verdict_cache import Verdicts

FEW: Final = 8  # sorting so much less than all is cheaper than looking through all
STEP: Final = 150  # 1500 points: all of kube-scheduler's own scores together are 1400 at most
FOR_THE_BEST: Final = 1


@dataclass(frozen=True, slots=True)
class Prioritized:
    """Nodes, best first, and the score of each."""

    order: Sequence[str]
    scores: Sequence[int]


def in_order(
    nodes: Sequence[str], verdicts: Verdicts, last: Mapping[str, int] = NOWHERE
) -> list[str]:
    """``nodes``, each once, best first: then those in ``last``, then those that do not fit.

    The higher the number in ``last``, the later is the node's turn.
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
    """The scores of so many nodes in their order, which then decides: no two are near each other.

    Packing would be undone by chance among equals, and by kube-scheduler's liking for empty nodes.
    """
    return range((count - 1) * STEP, -1, -STEP)


def weighing(
    order: Sequence[str], verdicts: Verdicts, last: Mapping[str, int] = NOWHERE
) -> list[int]:
    """The scores of nodes ``in_order`` as those of one plugin among others, 0 to 10.

    It is what the node's policy gives the utilisation of the pod's cards, and for the best node one
    more. Equal nodes have equal scores: kube-scheduler is to choose between them.
    """

    def below_zero(name: str) -> int:
        rank = verdicts.fits.get(name)
        if rank is None or rank[0] or name in last:
            return 0
        return -int(0.5 - rank[1])

    # They only fall along the order: its steps are looked for, not every node.
    found: list[int] = []
    while len(found) < len(order):
        score = below_zero(order[len(found)])
        end = bisect_right(order, score, lo=len(found), key=below_zero)
        found += [-score] * (end - len(found))
    if found:
        found[0] += FOR_THE_BEST
    return found
