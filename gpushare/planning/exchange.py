"""Place members that request the same but may go to different nodes: a maximum flow (pure).

First fit may give the only node of a member to another one that has a choice. Then members move
to other nodes until there is room, or there is provably none: an augmenting path of Ford and
Fulkerson from groups to nodes, each with the room of the node as its limit.
"""

from collections import deque
from collections.abc import Generator, Mapping, Sequence
from typing import Final

from gpushare.planning.areas import Candidates
from gpushare.planning.search.budget import Budget

NODES_A_STEP: Final = 512
RANKS_A_STEP: Final = 8  # as much work as the nodes of one step

Counts = list[dict[str, int]]  # by group: members by node


def spread_out(
    candidates: Sequence[Candidates], wanted: Sequence[int], budget: Budget
) -> Generator[None, None, Counts | None]:
    """Return how many members of each group go to each node; None if not all fit.

    None is exact unless ``budget.gave_up``. All groups have an equal need, so a node takes equally
    many members of each that it may take.
    """
    flow = yield from _flow(candidates, budget)
    order = sorted(range(len(wanted)), key=lambda number: candidates[number].room)
    missing = list(wanted)
    for group in order:
        yield
        missing[group] -= flow.first_fit(group, missing[group])
    for group in order:
        while missing[group]:
            moved = yield from flow.augment(group, missing[group])
            if not moved:
                return None
            missing[group] -= moved
    return flow.counts


def most_important(
    candidates: Sequence[Candidates], members: Sequence[int], budget: Budget
) -> Generator[None, None, Counts]:
    """Return how many members of each group go to each node if as many as possible are placed.

    ``members`` are their groups, the most important first. A member that is placed moves for
    another one, but never loses its place, so each is placed if it fits together with those before
    it that were.
    """
    flow = yield from _flow(candidates, budget)
    full = set()
    for group in members:
        yield
        if group in full:
            continue
        if not flow.first_fit(group, 1) and not (yield from flow.augment(group, 1)):
            full.add(group)
    return flow.counts


def _flow(candidates: Sequence[Candidates], budget: Budget) -> Generator[None, None, "_Flow"]:
    flow = _Flow(budget)
    for here in candidates:
        yield
        flow.add(here)
    return flow


class _Flow:
    def __init__(self, budget: Budget) -> None:
        self.counts: Counts = []
        self._budget = budget
        self._nodes: list[list[str]] = []
        self._first: list[int] = []  # nodes of a group before this place are full
        self._left: dict[str, int] = {}
        self._at: dict[str, dict[int, int]] = {}  # the same as counts, by node

    def add(self, here: Candidates) -> None:
        """Add the nodes of the next group."""
        names = [rank[3] for rank in here.ranks]
        self.counts.append({})
        self._nodes.append(names)
        self._first.append(0)
        self._left.update((name, here.takes[name]) for name in names)

    def first_fit(self, group: int, most: int) -> int:
        """Place members of a group on its best nodes; return how many."""
        placed, nodes = 0, self._nodes[group]
        first = self._first[group]
        while placed < most and first < len(nodes):
            name = nodes[first]
            placed += self._place(group, name, min(most - placed, self._left[name]))
            if not self._left[name]:
                first += 1
        self._first[group] = first
        return placed

    def augment(self, group: int, most: int) -> Generator[None, None, int]:
        """Make room by one chain of moves, and use it; return for how many members, 0 for none."""
        before: dict[int, tuple[int, str]] = {}  # a group makes room for another one on a node
        seen, visited, queue = {group}, set[str](), deque([group])
        steps = 0
        while queue:
            one = queue.popleft()
            for name in self._nodes[one]:
                steps += 1
                if steps % NODES_A_STEP == 0:
                    yield
                    if not self._budget.may_rank(RANKS_A_STEP):
                        return 0
                if name in visited:
                    continue
                visited.add(name)
                if self._left[name]:
                    return self._move(group, one, name, before, most)
                for other, count in self._at[name].items():
                    if count and other not in seen:
                        seen.add(other)
                        before[other] = one, name
                        queue.append(other)
        return 0

    def _move(
        self,
        group: int,
        last: int,
        to: str,
        before: Mapping[int, tuple[int, str]],
        most: int,
    ) -> int:
        count, each = min(most, self._left[to]), last
        while each != group:
            other, name = before[each]
            count, each = min(count, self._at[name][each]), other
        each = last
        while True:
            self._place(each, to, count)
            if each == group:
                return count
            other, to = before[each]
            self._place(each, to, -count)
            each = other

    def _place(self, group: int, name: str, count: int) -> int:
        if count:
            self._left[name] -= count
            here, at = self.counts[group], self._at.setdefault(name, {})
            here[name] = here.get(name, 0) + count
            at[group] = at.get(group, 0) + count
        return count
