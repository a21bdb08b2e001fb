"""Count what pods leave of GPUs, and for which kinds of pods it is too little (pure)."""

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from gpushare.ledger.accounts import NodeAccount
from gpushare.ledger.ledger import Ledger
from gpushare.placement.fragmentation import fragmentation
from gpusharectl.policies.kinds import Kind


class TooLittle(msgspec.Struct, frozen=True):
    """The number of ``gpus`` that have ``units`` free in all, of no use to a kind of pods."""

    gpus: int
    units: int


class Left(msgspec.Struct, rename="camel", frozen=True):
    """``used`` of the ``units`` of all GPUs; ``free_cards`` take new pods and are not used at all.

    ``unusable`` are free units on GPUs where less is free than any kind requests of each.
    ``fragmentation`` is that of the metric, 0 to 1. ``too_little`` has by kind the GPUs with free
    memory that no pod of the kind can use, and that one could use if they were empty: too little is
    free there, or on too few other GPUs of the node.
    """

    units: int
    used: int
    free_cards: int = msgspec.field(name="freeGPUs")
    unusable: int
    fragmentation: float
    too_little: tuple[TooLittle, ...]


def left_on(ledger: Ledger, nodes: Iterable[str], kinds: Sequence[Kind]) -> Left:
    """Return what is left of the GPUs of these nodes."""
    units = used = free_cards = unusable = 0
    least = min((kind.units_per_card for kind in kinds), default=0)
    free: Counter[int] = Counter()
    wanted: Counter[int] = Counter()
    useless: list[list[int]] = [[] for _ in kinds]
    for name in nodes:
        account = ledger.account(name)
        if account is None:
            continue
        units += sum(entry.card.units for entry in account.cards)
        used += sum(entry.card.units - entry.free for entry in account.cards)
        free_cards += sum(entry.free == entry.card.units for entry in account.open)
        unusable += sum(entry.free for entry in account.open if entry.free < least)
        free.update(account.largest_free)
        wanted.update(share.units for share in ledger.shares(name) if not share.is_unplaced)
        for found, kind in zip(useless, kinds, strict=True):
            found.extend(_useless(account, kind))
    lost = round(fragmentation(free, wanted), 4)
    too_little = tuple(TooLittle(len(found), sum(found)) for found in useless)
    return Left(units, used, free_cards, unusable, lost, too_little)


def _useless(account: NodeAccount, kind: Kind) -> list[int]:
    """Return what is free on each GPU of a node where that is too little for the kind."""
    wanted = kind.units_per_card
    large = [entry.free for entry in account.open if entry.card.units >= wanted]
    if len(large) < kind.cards:
        return []  # as if they were empty
    is_enough = sum(free >= wanted for free in large) >= kind.cards
    return [free for free in large if free and not (is_enough and free >= wanted)]
