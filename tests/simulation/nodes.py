"""GPU nodes as their device plugins report them, and changes of their cards."""

import random
from dataclasses import replace
from typing import Final

from gpushare.annotations import inventory
from gpushare.cards.model import Card, Health, Inventory
from gpushare.contract import (
    ANNOTATION_CORDONED_CARDS,
    ANNOTATION_INVENTORY,
    EARLY_BINDING,
    LATE_BINDING,
    RESOURCE_COUNT,
    RESOURCE_MEMORY,
)
from tests.simulation.store import Store

SIZES: Final = (8, 16, 24)
BINDS_LATE: Final = "node-1"  # where a pod without a decision starts on no card; elsewhere on any


class Nodes:
    """Between one and three nodes of one to four cards."""

    def __init__(self, store: Store, rng: random.Random) -> None:
        self._store, self._rng = store, rng
        self._well = {
            f"node-{number}": tuple(
                Card(index, f"GPU-{number}{index}", rng.choice(SIZES), tag=f"a{index}", minor=index)
                for index in range(rng.choice((1, 2, 4)))
            )
            for number in range(rng.choice((1, 2, 3)))
        }
        self.restore()

    @property
    def names(self) -> list[str]:
        return list(self._well)

    def restore(self) -> None:
        """Make every card healthy."""
        for name, cards in self._well.items():
            self._put(name, cards, "")

    def change(self) -> str:
        """Change a node; return what changed."""
        name = self._rng.choice(self.names)
        if name not in self._store.nodes:
            self._put(name, self._well[name], "")
            return f"{name} is back"
        what = self._rng.choice(("ill", "cordoned", "shrunk", "well", "well", "removed"))
        cards, chosen = self._well[name], self._rng.choice(self._well[name]).uuid
        if what == "removed":
            self._store.remove("nodes", name)
        elif what == "cordoned":
            self._put(name, cards, chosen)
        else:
            changes = {
                "ill": {"health": Health.UNHEALTHY},
                "shrunk": {"units": self._rng.choice((4, 6))},
                "well": {},
            }[what]
            self._put(
                name, tuple(replace(c, **changes) if c.uuid == chosen else c for c in cards), ""
            )
        return f"{chosen} of {name}: {what}"

    def _put(self, name: str, cards: tuple[Card, ...], cordoned: str) -> None:
        healthy = str(sum(card.units for card in cards if card.is_healthy))
        total, count = str(sum(card.units for card in cards)), str(len(cards))
        binding = LATE_BINDING if name == BINDS_LATE else EARLY_BINDING
        found = Inventory(1, cards, "0.1.0", binding)
        annotations = {ANNOTATION_INVENTORY: inventory.encode(found)}
        if cordoned:
            annotations[ANNOTATION_CORDONED_CARDS] = cordoned
        self._store.put(
            "nodes",
            {
                "metadata": {"name": name, "uid": name, "annotations": annotations},
                "spec": {},
                "status": {
                    "capacity": {RESOURCE_MEMORY: total, RESOURCE_COUNT: count, "pods": "110"},
                    "allocatable": {
                        RESOURCE_MEMORY: healthy,
                        RESOURCE_COUNT: count,
                        "pods": "110",
                    },
                },
            },
        )
