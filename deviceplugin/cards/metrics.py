"""Shows the node's GPUs and their device list as metrics."""

from collections.abc import Collection, Mapping
from typing import Final

from deviceplugin import metrics
from deviceplugin.cards.device_list import worst_bytes
from gpushare.cards.model import Inventory

_STATES: Final = ("healthy", "suspect", "unhealthy", "recovering", "gone", "mig")
_WARNINGS: Final = ("DeviceListLarge", "CardUnitsMany")


def show_list(inventory: Inventory, *, is_refused: bool, warnings: Collection[str] = ()) -> None:
    metrics.LIST_DEVICES.set(sum(card.units for card in inventory.cards))
    metrics.LIST_BYTES.set(worst_bytes(inventory))
    metrics.LIST_REFUSED.set(is_refused)
    for reason in _WARNINGS:
        metrics.LIST_WARNINGS.labels(reason).set(reason in warnings)


def show_failing(about: Collection[str]) -> None:
    """Show the queries that keep failing; each text has a GPU's UUID and the query's name."""
    metrics.FAILING_QUERIES.clear()
    for text in about:
        metrics.FAILING_QUERIES.labels(*text.split(" ", 1)).set(1)


def show_cards(
    inventory: Inventory, states: Mapping[str, tuple[str, str]], unreadable: int
) -> None:
    """Show what is offered, each GPU's state with its reason, and how many never answered.

    The reason is a label of the current state; nothing is awaited while the last one is replaced.
    """
    healths = [
        "mig" if states[card.uuid][0] == "mig" else card.health.value for card in inventory.cards
    ]
    for health in ("healthy", "unhealthy", "mig"):
        metrics.CARDS.labels(health).set(healths.count(health))
    metrics.CARDS.labels("unreadable").set(unreadable)
    metrics.CARD_STATE.clear()
    for uuid, (now, reason) in states.items():
        for state in _STATES:
            label = reason if state == now else ""
            metrics.CARD_STATE.labels(uuid, state, label).set(state == now)
