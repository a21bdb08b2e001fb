"""How much of what is free is of no use, because it lies in pieces that are too small (pure)."""

from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate


def fragmentation(free: Mapping[int, int], wanted: Mapping[int, int]) -> float:
    """The share of free units that a pod like those that run could not use, 0 to 1.

    ``free`` says how many healthy cards have so many units free, ``wanted`` how many pods hold so
    many units of a card. The free units of a card are of no use to a pod that wants more of one
    card than is free there; averaged over the pods, weighed by the units:

        sum over cards of free * (share of pods that want more than free) / sum over cards of free

    0: every free unit lies on a card that any of the pods would fit on, or nothing is free or
    nobody is there to compare with. 1: no card could take even the smallest of them. This is the
    measure of Weng et al., "Beware of Fragmentation" (ATC 2023), for one resource.
    """
    sizes = sorted(size for size, count in wanted.items() if count > 0)
    up_to = list(accumulate((wanted[size] for size in sizes), initial=0))
    pods = up_to[-1]
    total = sum(units * cards for units, cards in free.items())
    if not pods or not total:
        return 0.0
    stranded = sum(
        units * cards * (pods - up_to[bisect_right(sizes, units)]) for units, cards in free.items()
    )
    return stranded / (total * pods)
