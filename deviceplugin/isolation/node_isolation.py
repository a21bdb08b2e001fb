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
NOT_KNOWN: Final = "the device plugin has just started"
_NOT_SHOWN: Final = "the driver has not shown the GPU since the device plugin started"
_CAN: Final = ("", "")


class NodeIsolation:
    """``before`` is the inventory as last known; it holds until driver and node are seen.

    ``why_no_limit``: why containers of this node get no limit on any GPU. ``doubts``: why limits
    are not promised although they are set, by what the doubt is about.
    """

    def __init__(
        self, flag: MemoryLimitFlag, *, by_frameworks: bool, before: Inventory | None
    ) -> None:
        self._flag = flag
        self._by_frameworks = by_frameworks
        cards = before.cards if before is not None else ()
        was_limited = {card.uuid for card in cards if card.enforces == BY_DRIVER}
        # Of each GPU why the driver cannot limit, and why it hides limits, as in PhysicalCard.
        self._drivers = dict.fromkeys(was_limited, _CAN)
        self.why_no_limit = "" if was_limited else NOT_KNOWN
        self.doubts: dict[str, str] = {}

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
            is_limited,
            why_not_promised=next((why for card in cards if (why := self._why_not_more(card))), ""),
            is_required=self.is_required,
            guards=can_limit and not is_limited,
            by_frameworks=self._by_frameworks,
        )

    def stated(self, card: Card) -> Card:
        """Return the GPU with what the inventory states of it."""
        why = self._why_not_more(card)
        is_told = self._by_frameworks and not self.of([card]).is_limited
        less = BY_FRAMEWORK if is_told else BY_NOTHING
        return replace(card, enforces=less if why else BY_DRIVER, why_not_more=why)

    def why_closed(self, cards: Iterable[Card]) -> str:
        """Return why the node takes no pods with --memory-limit=require; empty if it does.

        Nothing is said of GPUs of which it is not known yet.
        """
        if not self.is_required:
            return ""
        for card in cards:
            why = self._why_not_more(card)
            if why and why not in {NOT_KNOWN, _NOT_SHOWN}:
                return (
                    f"--memory-limit=require is set, and the driver limits no memory of GPU "
                    f"{card.uuid}: {why}"
                )
        return ""

    def _why_not_more(self, card: Card) -> str:
        off = OFF if self._flag == "off" else ""
        why_no_limit, hides_limits = self._of_driver(card)
        doubts = (hides_limits, *self.doubts.values())
        return off or why_no_limit or self.why_no_limit or next(filter(None, doubts), "")

    def _of_driver(self, card: Card) -> tuple[str, str]:
        return self._drivers.get(card.uuid, (_NOT_SHOWN, ""))
