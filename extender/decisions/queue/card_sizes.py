"""Know the sizes of the GPUs that nodes have, for requests that none can ever grant (pure)."""

from collections import Counter
from collections.abc import Generator

from gpushare.cards.model import Request
from gpushare.ledger.ledger import Ledger

_Cards = tuple[tuple[int, str], ...]  # units and model of each card of a node, the largest first


class CardSizes:
    """Counts cards whatever is free, unhealthy or cordoned: that may change without a new node.

    ``version`` grows when nodes begin or cease to have other cards than all others.
    """

    def __init__(self, ledger: Ledger, unit_mib: int) -> None:
        self._ledger, self._unit_mib = ledger, unit_mib
        self._of_nodes: dict[str, _Cards] = {}
        self._counted: Counter[_Cards] = Counter()  # few: most nodes have the same cards
        self._seen = -1
        self.version = 0

    def renew(self) -> Generator[None, None, None]:
        """Take in what has changed, node by node."""
        now, changed = self._ledger.changes.now, self._ledger.changes.since(self._seen)
        if changed is None or self._seen < 0:
            changed = {*self._ledger.nodes(), *self._of_nodes}
        for name in changed:
            before, cards = self._of_nodes.pop(name, ()), self._cards_of(name)
            if cards:
                self._of_nodes[name] = cards
            if cards != before:
                self._count(before, -1)
                self._count(cards, 1)
            yield
        self._seen = now

    @property
    def are_known(self) -> bool:
        """Return whether a node has GPUs."""
        return bool(self._counted)

    def may_grant(self, request: Request) -> bool:
        """Return whether a node has enough cards that are large enough; True without any node.

        Cards that a pod names or excludes by UUID are not looked at.
        """
        return not self._counted or any(_may_grant(cards, request) for cards in self._counted)

    def _cards_of(self, node: str) -> _Cards:
        inventory = self._ledger.inventory(node)
        if inventory is None or inventory.unit_mib != self._unit_mib:
            return ()
        return tuple(sorted(((card.units, card.model) for card in inventory.cards), reverse=True))

    def _count(self, cards: _Cards, by: int) -> None:
        if not cards:
            return
        before = self._counted[cards]
        self._counted[cards] += by
        if not self._counted[cards]:
            del self._counted[cards]
        self.version += not before or cards not in self._counted


def _may_grant(cards: _Cards, request: Request) -> bool:
    models, count = request.policy.models, request.card_count
    sizes = [units for units, model in cards if not models or model in models]
    return len(sizes) >= count and sizes[count - 1] >= request.units_per_card
