"""Place members one after the other, each on the node that ranks best (pure)."""

from collections.abc import Generator, Sequence
from heapq import heapify, heappop, heappush

from gpushare.ledger.holds import Slot
from gpushare.planning.areas import Candidates
from gpushare.planning.draft import Draft


def largest_first(candidates: Sequence[Candidates]) -> list[int]:
    """Return the order of the groups in which first fit places them: the largest members first.

    Of equal members, those with the least room come first.
    """

    def key(number: int) -> tuple[int, int, list[int], int]:
        need = candidates[number].group.shape.need
        amounts = [-amount for _, amount in need.requests]
        return -need.units, -need.card_count, amounts, candidates[number].room

    return sorted(range(len(candidates)), key=key)


class FirstFit:
    """Plans slots of one group: those that its members would get if they came one by one.

    Slots of other groups in the same draft may be planned in between.
    """

    def __init__(self, draft: Draft, here: Candidates) -> None:
        self._draft, self._here, self._shape = draft, here, here.group.shape
        rank_of = draft.rank
        self._again = [
            rank
            for name in draft.nodes
            if name in here.takes and (rank := rank_of(self._shape, name)) is not None
        ]
        heapify(self._again)
        opened = set(draft.nodes)
        self._first = (rank for rank in here.ranks if rank[3] not in opened)
        self._best = next(self._first, None)

    def one(self) -> Slot | None:
        """Plan a slot for one more member; None if no more fit."""
        again, draft, shape = self._again, self._draft, self._shape
        while again or self._best is not None:
            best = self._best
            if best is None or (again and again[0] < best):
                now = heappop(again)
            else:
                now, self._best = best, next(self._first, None)
            name = now[3]
            slot = draft.take(shape, name)
            if slot is None:
                continue  # others took the room, or the node changed since it was ranked
            rank = draft.rank(shape, name)
            if rank is not None:
                heappush(again, rank)
            return slot
        return None

    def some(self, count: int) -> Generator[None, None, list[Slot]]:
        """Plan slots for ``count`` more members, fewer if no more fit."""
        slots: list[Slot] = []
        while len(slots) < count and (slot := self.one()) is not None:
            slots.append(slot)
            yield
        return slots


def on_hinted_nodes(
    draft: Draft, here: Candidates, hints: Sequence[str]
) -> Generator[None, None, list[Slot]]:
    """Plan slots on these nodes, one for each, where that is possible."""
    slots = []
    for name in hints:
        if here.takes.get(name, 0):
            slot = draft.take(here.group.shape, name)
            slots += [slot] if slot is not None else []
            yield
    return slots
