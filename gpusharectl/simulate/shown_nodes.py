"""The nodes of a simulated cluster as its steps show them (pure)."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from msgspec.structs import replace

from gpushare.ledger.ledger import Ledger
from gpushare.placement.fragmentation import fragmentation
from gpusharectl.simulate import view


class _Sum(NamedTuple):
    """A node's part of the sums; ``free`` by card, ``wanted`` by pod and card."""

    units: int
    used: int
    free: tuple[int, ...]
    wanted: tuple[int, ...]


class ShownNodes:
    """Keeps what it has made of a node until the node has ``changed``.

    ``names`` returns the nodes to show, in order, and ``why_closed`` why one takes no new pods.
    """

    def __init__(
        self, ledger: Ledger, names: Callable[[], list[str]], why_closed: Callable[[str], str]
    ) -> None:
        self._ledger, self._names, self._why_closed = ledger, names, why_closed
        self._views: dict[str, view.Node] = {}
        self._sums: dict[str, _Sum] = {}

    def changed(self, name: str) -> None:
        self._views.pop(name, None)
        self._sums.pop(name, None)

    def nodes(self, touched: Iterable[str] = ()) -> tuple[view.Node, ...]:
        """Return every node that shares GPUs, or tries to, with all its GPUs."""
        here = set(touched)
        found = []
        for name in self._names():
            made = self._views.get(name)
            if made is None:
                made = self._views[name] = self._view(name)
            found.append(replace(made, touched=True) if name in here else made)
        return tuple(found)

    def sums(self) -> tuple[int, int, int, float]:
        """Return units, used units, the most free on one usable GPU, and fragmentation."""
        free: Counter[int] = Counter()
        wanted: Counter[int] = Counter()
        units = used = 0
        for name in self._ledger.nodes():
            here = self._sums.get(name)
            if here is None:
                here = self._sums[name] = self._sum(name)
            units += here.units
            used += here.used
            free.update(here.free)
            wanted.update(here.wanted)
        return units, used, max(free, default=0), round(fragmentation(free, wanted), 4)

    def _sum(self, name: str) -> _Sum:
        account = self._ledger.account(name)
        assert account is not None, "the ledger has its GPUs"  # noqa: S101
        return _Sum(
            sum(entry.card.units for entry in account.cards),
            sum(entry.card.units - entry.free for entry in account.cards),
            account.largest_free,
            tuple(s.units for s in self._ledger.shares(name) if not s.is_unplaced),
        )

    def _view(self, name: str) -> view.Node:
        # In order of arrival: each keeps its place in the bar.
        shares = list(self._ledger.shares(name))
        account = self._ledger.account(name)
        found = []
        for entry in account.cards if account is not None else ():
            here = [share for share in shares if entry.card.uuid in share.cards]
            found.append(
                view.Card(
                    index=entry.card.index,
                    uuid=entry.card.uuid,
                    model=entry.card.model,
                    health=entry.card.health.value,
                    cordoned=entry.card.is_cordoned,
                    units=entry.card.units,
                    used=entry.used,
                    free=entry.free,
                    pods=tuple(view.Share(s.namespace, s.name, s.units) for s in here),
                )
            )
        unplaced = [
            view.Unplaced(s.namespace, s.name, s.units, s.why_unplaced, not s.starts_nowhere)
            for s in shares
            if s.is_unplaced
        ]
        return view.Node(
            name=name,
            units=sum(card.units for card in found),
            used=sum(card.units - card.free for card in found),
            closed=self._why_closed(name),
            touched=False,
            cards=tuple(found),
            unplaced=tuple(unplaced),
        )
