"""Which cards hold more than they have: each is counted and said once, when it comes to it."""

import logging

from gpushare.ledger.ledger import Ledger

log = logging.getLogger(__name__)


class OverCards:
    """Who changes the ledger says on which nodes; ``times`` counts cards that came to be over."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._over: dict[str, frozenset[str]] = {}  # UUIDs by node
        self._due: set[str] = set()
        self.times = 0

    def changed(self, node: str) -> None:
        """A card of the node may hold more now, or have less."""
        self._due.add(node)

    def freed(self, node: str) -> None:
        """Its cards hold less, or are gone."""
        if node in self._over:
            self._due.add(node)

    def look(self) -> None:
        """Count, and say, which cards have come to hold more than they have since the last look."""
        nodes, self._due = self._due, set()
        for node in nodes:
            account = self._ledger.account(node)
            over = (
                {e.card.uuid: e for e in account.cards if e.overcommitted}
                if account is not None
                else {}
            )
            for uuid in over.keys() - self._over.get(node, frozenset()):
                self.times += 1
                held = over[uuid].used + over[uuid].reserved
                log.error(
                    "card holds more than it has",
                    extra={"node": node, "card": uuid, "has": over[uuid].card.units, "held": held},
                )
            self._over[node] = frozenset(over)
            if not over:
                del self._over[node]
