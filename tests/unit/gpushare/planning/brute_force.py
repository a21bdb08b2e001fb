"""Whether a small gang fits, by trying everything."""

from collections.abc import Sequence
from functools import cache
from itertools import combinations

Node = tuple[tuple[int, ...], int]  # free units of its cards, free CPUs
Member = tuple[int, int, int, frozenset[int]]  # units, cards, CPUs, nodes


def fits(nodes: Sequence[Node], members: Sequence[Member]) -> bool:
    return most(nodes, members) == len(members)


def most(nodes: Sequence[Node], members: Sequence[Member]) -> int:
    """Return how many of the members fit together at most."""

    @cache
    def rest(number: int, state: tuple[Node, ...]) -> int:
        if number == len(members):
            return 0
        units, count, cpu, allowed = members[number]
        best = rest(number + 1, state)
        for place in allowed:
            free, left = state[place]
            if left < cpu:
                continue
            tried = set()
            for chosen in combinations(range(len(free)), count):
                if any(free[card] < units for card in chosen):
                    continue
                after = tuple(sorted(much - units * (n in chosen) for n, much in enumerate(free)))
                if after not in tried:
                    tried.add(after)
                    now = (*state[:place], (after, left - cpu), *state[place + 1 :])
                    best = max(best, 1 + rest(number + 1, now))
            if best == len(members) - number:
                break
        return best

    return rest(0, tuple((tuple(sorted(free)), cpu) for free, cpu in nodes))
