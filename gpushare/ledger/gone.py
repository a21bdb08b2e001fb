"""What bound pods would leave on their nodes if they were gone (pure)."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from gpushare.ledger.ledger import Ledger
from gpushare.objects.pod_requests import Requests


@dataclass(slots=True, eq=False)
class Freed:
    """``units`` of each card (UUID), ``unplaced`` units of every card, and ``amounts``."""

    units: dict[str, int] = field(default_factory=dict)
    unplaced: int = 0
    amounts: dict[str, int] = field(default_factory=dict)


class Gone:
    """Pods whose room counts as free although they are still there: ``pods`` are uids by node.

    A pod that has really gone meanwhile frees nothing more. ``requests_used`` returns what a bound
    pod uses of its node.
    """

    def __init__(
        self,
        ledger: Ledger,
        requests_used: Callable[[str], Requests],
        pods: Mapping[str, Collection[str]],
    ) -> None:
        self.nodes = pods.keys()
        self._ledger, self._requests_used, self._pods = ledger, requests_used, pods

    def includes(self, node: str, uid: str) -> bool:
        return uid in self._pods.get(node, ())

    def freed(self, node: str) -> Freed:
        """Return what the pods on a node use now."""
        found = Freed()
        for uid in self._pods.get(node, ()):
            share = self._ledger.share(uid)
            if share is not None and share.node == node:
                found.unplaced += share.units_everywhere
                for uuid in share.cards:
                    found.units[uuid] = found.units.get(uuid, 0) + share.units
            for name, amount in self._requests_used(uid):
                found.amounts[name] = found.amounts.get(name, 0) + amount
        return found


NOBODY: Final = Gone(Ledger(), lambda _: (), {})
