"""prioritize: the order of the nodes that filter has left, as scores (pure).

kube-scheduler picks among equal totals by chance, which would undo the packing: so no two nodes
get the same score. It does not clamp what an extender says (schedule_one.go, prioritizeNodes).
"""

from collections.abc import Mapping, Sequence
from typing import Final

from extender.offers import NOWHERE
from gpushare.placement.index import Verdicts

FEW: Final = 8  # sorting so much less than all is cheaper than looking through all
LEAST: Final = 10  # of the last node; above it each is worth one more


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


def scores(count: int) -> range:
    """The scores of so many nodes, the best one's first."""
    return range(LEAST + count - 1, LEAST - 1, -1)
