"""Find the pods of one node whose end leaves room for a larger request (pure)."""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence

from gpushare.cards.model import Share
from gpushare.ledger.accounts import CardAccount


class NodeEnds:
    """The ``shares`` of one node, for pods that use ``count`` of its ``open`` cards."""

    __slots__ = ("_count", "_open", "_room", "_shares")

    def __init__(self, count: int, opened: Sequence[CardAccount], shares: Iterable[Share]) -> None:
        self._count, self._open = count, opened
        self._shares = tuple(shares)
        self._room: array[int] | None = None  # what the end of each one leaves, rising

    def alone(self, units: int) -> Sequence[Share]:
        """Return the shares of which any one, once ended, leaves room for ``units``."""
        if self._room is None:
            room = [of_each(self._count, self._spares([share])) for share in self._shares]
            rising = sorted(range(len(room)), key=room.__getitem__)
            self._shares = tuple(self._shares[place] for place in rising)
            self._room = array("q", (room[place] for place in rising))
        return self._shares[bisect_left(self._room, units) :]

    def fewest(self, units: int) -> list[Share] | None:
        """Return the fewest shares whose end together leaves room for ``units``; None if none do.

        For several cards the result leaves room and no share in it is superfluous, but there may be
        a smaller one.
        """
        emptied = (self._emptied(entry, units) for entry in self._open)
        found = sorted((each for each in emptied if each is not None), key=len)[: self._count]
        if len(found) < self._count:
            return None
        ended = {share.pod_uid: share for shares in found for share in shares}
        spares = self._spares(ended.values())
        for uid, share in list(ended.items()):
            self._add(spares, share, -share.units)
            if of_each(self._count, spares) >= units:
                del ended[uid]
            else:
                self._add(spares, share, share.units)
        return list(ended.values())

    def _emptied(self, entry: CardAccount, units: int) -> list[Share] | None:
        if entry.card.units < units:
            return None
        missing = units - (entry.card.units - entry.committed)
        here = [each for each in self._shares if each.may_use(entry.card.uuid)]
        ended: list[Share] = []
        for share in sorted(here, key=lambda each: (-each.units, each.pod_key)):
            if missing <= 0:
                break
            ended.append(share)
            missing -= share.units
        return ended if missing <= 0 else None

    def _spares(self, without: Iterable[Share]) -> list[int]:
        spares = [entry.card.units - entry.committed for entry in self._open]
        for share in without:
            self._add(spares, share, share.units)
        return spares

    def _add(self, spares: list[int], share: Share, units: int) -> None:
        """Add units to the spares of the cards that a share uses."""
        for place, entry in enumerate(self._open):
            if share.may_use(entry.card.uuid):
                spares[place] += units


def of_each(count: int, units: Iterable[int]) -> int:
    """Return the units of each of the ``count`` largest, 0 if there are fewer or it is negative."""
    falling = sorted(units, reverse=True)
    return max(0, falling[count - 1]) if len(falling) >= count else 0
