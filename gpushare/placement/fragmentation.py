"""Measure how many free units are unusable because they are spread over cards (pure)."""

from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate


def fragmentation(free: Mapping[int, int], wanted: Mapping[int, int]) -> float:
    """Return the proportion of free units that a pod like the running ones could not use, 0 to 1.

    ``free`` is the number of healthy cards by their free units, ``wanted`` the number of pods by
    the units that they use of a card. A card's free units are useless to a pod that wants more of
    one card than is free there. The result is the average over the pods, weighted by units:

        sum over cards of free * (part of pods that want more than free) / sum over cards of free

    0: every pod would fit on every card with free units, or nothing is free, or there are no pods.
    1: no card could take even the smallest pod. This is the measure of Weng et al., "Beware of
    Fragmentation" (ATC 2023), for one resource.
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
