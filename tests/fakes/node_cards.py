"""A node with two GPUs, whose plugin knows what it is shown."""

from deviceplugin.cards.node_cards import NodeCards
from deviceplugin.cards.state_file import Saved
from deviceplugin.cards.survey import Terms
from deviceplugin.driver.interface import CardEvent, Seen, UnreadableCard
from deviceplugin.errors import Reason
from tests.fakes.clock import FakeClock
from tests.fakes.driver import card

TERMS = Terms(unit_mib=1024)
FIRST, SECOND = card(0), card(1)
WAIT = 60.0


class Node:
    """The node's cards under a clock that is set by hand."""

    def __init__(
        self, before: Saved | None = None, terms: Terms = TERMS, load: str = "boot-1/"
    ) -> None:
        self.clock = FakeClock()
        self.load = load
        self.cards = NodeCards(
            terms, before, clock=self.clock, recover_seconds=WAIT, load=lambda: self.load
        )

    def show(self, *seen: Seen, xid: CardEvent | None = None, after: float = 0.0) -> None:
        self.clock.now += after
        self.cards.seen(seen, [xid] if xid else [])

    @property
    def offered(self) -> list[bool]:
        return [each.is_healthy for each in self.cards.inventory.cards]

    def trouble(self, uuid: str, *, at_start: bool = True) -> tuple[Reason, str] | None:
        return self.cards.trouble(self.cards.inventory.by_uuid(uuid), at_start=at_start)


def lost(uuid: str = SECOND.uuid) -> UnreadableCard:
    return UnreadableCard(1, uuid, "GPU is lost", is_definite=True)


def hiccup() -> UnreadableCard:
    return UnreadableCard(1, SECOND.uuid, "Unknown Error")
