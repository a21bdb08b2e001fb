"""What a planner has to know of the cluster (pure)."""

from collections.abc import Iterable, Mapping
from typing import Protocol

from gpushare.ledger.changes import Changes
from gpushare.placement.trial import World


class Known(World, Protocol):
    def free_resources(
        self, node: str, *, besides: str = "", priority: int | None = None
    ) -> Mapping[str, int] | None:
        """Return a node's allocatable less all requests of its pods and of holds and claims."""

    @property
    def resource_changes(self) -> Changes:
        """Return which nodes' free resources, labels, taints and so on changed."""

    def all_node_names(self) -> Iterable[str]:
        """Return the names of all nodes."""
