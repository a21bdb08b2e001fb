"""What keeps containers to their share on each GPU of this node, and why not more (pure)."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Final

from deviceplugin.driver.interface import PhysicalCard, Seen
from deviceplugin.isolation.variables import Enforcement
from deviceplugin.settings import MemoryLimitFlag
from gpushare.cards.model import Card, Inventory
from gpushare.contract import BY_DRIVER, BY_FRAMEWORK, BY_NOTHING

OFF: Final = "--memory-limit=off is set"
MIG: Final = "the driver limits no memory of a GPU in MIG mode"
_NOT_KNOWN: Final = "the device plugin has just started"


class NodeIsolation:
    """``before`` is the inventory as last known; it holds until driver and node are seen.

    ``why_no_limit``: why containers of this node get no limit on any GPU. ``why_unread``: why the
    limits of running containers cannot be read.
    """

    def __init__(
        self, flag: MemoryLimitFlag, *, by_frameworks: bool, before: Inventory | None
    ) -> None:
        self._flag = flag
        self._by_frameworks = by_frameworks
        cards = before.cards if before is not None else ()
        was_limited = {card.uuid for card in cards if card.enforces == BY_DRIVER}
        self._drivers = dict.fromkeys(was_limited, ("", ""))  # the whys of PhysicalCard
        self.why_no_limit = "" if was_limited else _NOT_KNOWN
        self.why_unread = ""

    @property
    def is_required(self) -> bool:
        """Whether no container may start without a limit."""
        return self._flag == "require"

    def seen(self, cards: Iterable[Seen]) -> None:
        """Take over what the driver can do for the GPUs that it shows."""
        self._drivers |= {
            card.uuid: (MIG if card.is_mig else card.why_no_limit, card.hides_limits)
            for card in cards
            if isinstance(card, PhysicalCard)
        }

    def forget(self, uuids: Collection[str]) -> None:
        self._drivers = {uuid: why for uuid, why in self._drivers.items() if uuid not in uuids}

    def can_limit(self, cards: Iterable[Card]) -> bool:
        """Whether the driver can limit a container's memory on each of these GPUs."""
        return not any(self._of_driver(card)[0] for card in cards)

    def of(self, cards: Sequence[Card]) -> Enforcement:
        """Return what a container that starts on these GPUs gets."""
        can_limit = self.can_limit(cards)
        is_limited = can_limit and not self.why_no_limit and self._flag != "off"
        return Enforcement(
            is_limited, guards=can_limit and not is_limited, by_frameworks=self._by_frameworks
        )

    def stated(self, card: Card) -> Card:
        """Return the GPU with what the inventory states of it."""
        why_no_limit, hides_limits = self._of_driver(card)
        off = OFF if self._flag == "off" else ""
        why = off or why_no_limit or self.why_no_limit or hides_limits or self.why_unread
        less = BY_FRAMEWORK if self._by_frameworks else BY_NOTHING
        return replace(card, enforces=less if why else BY_DRIVER, why_not_more=why)

    def why_closed(self, cards: Iterable[Card]) -> str:
        """Return why the node takes no pods with --memory-limit=require; empty if it does."""
        if not self.is_required:
            return ""
        first = next((card for card in cards if card.enforces != BY_DRIVER), None)
        if first is None:
            return ""
        return (
            f"--memory-limit=require is set, and the driver limits no memory of GPU {first.uuid}: "
            f"{first.why_not_more}"
        )

    def _of_driver(self, card: Card) -> tuple[str, str]:
        return self._drivers.get(card.uuid, (_NOT_KNOWN, ""))
