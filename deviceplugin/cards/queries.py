"""What a failed query of the driver means: the GPU is offered all the same (pure).

Only UUID and memory are needed to offer a GPU. What a failed query would have shown stays as it was
last known, and the operator gets a text that names the query once it has failed several times in a
row: a single answer may be odd.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from deviceplugin.cards.rules import QUICK_CHECKS
from deviceplugin.driver.interface import NO_MINOR, PhysicalCard, Query, Seen
from gpushare.cards.model import Card, Inventory

_UNNOTICED: Final = "faults that only it shows go unnoticed, and end unnoticed"
_EFFECT: Final[Mapping[Query, str]] = {
    Query.RESERVED: "the memory that the driver reserves is as last known, and else counts as none",
    Query.MINOR: "its number is as last known, and else NVIDIA's CDI file cannot be checked for it",
    Query.MODEL: "its model is as last known, and else empty",
    Query.MIG: "its MIG mode is as last known, and else off",
    Query.RECOVERY_ACTION: "the driver's advice is not known: NVIDIA's catalog decides about XIDs",
    Query.REMAPPED_ROWS: _UNNOTICED,
    Query.PENDING_PAGES: _UNNOTICED,
    Query.ECC_ERRORS: _UNNOTICED,
}

Failures = Mapping[tuple[str, Query], int]


def completed(
    seen: Sequence[Seen],
    known: Inventory | None,
    *,
    mig: Collection[str],
    reserved_mib: Mapping[str, int],
) -> tuple[Seen, ...]:
    """Return the GPUs with what is ``known`` of them in place of what failed queries did not show.

    ``mig`` are the UUIDs of the GPUs in MIG mode, ``reserved_mib`` is by UUID.
    """
    return tuple(
        _completed(card, known.by_uuid(card.uuid) if known else None, mig, reserved_mib)
        if isinstance(card, PhysicalCard) and card.failed
        else card
        for card in seen
    )


def _completed(
    card: PhysicalCard, known: Card | None, mig: Collection[str], reserved_mib: Mapping[str, int]
) -> PhysicalCard:
    if Query.MIG in card.failed and card.uuid in mig:
        card = replace(card, is_mig=True)
    if Query.RESERVED in card.failed and card.reserved_mib is None:
        card = replace(card, reserved_mib=reserved_mib.get(card.uuid))
    if known is None:
        return card
    return replace(
        card,
        minor=known.minor if card.minor == NO_MINOR else card.minor,
        model=card.model or known.model,
    )


def counted(before: Failures, seen: Sequence[Seen]) -> Failures:
    """Return in how many checks in a row each query has failed."""
    return {
        (card.uuid, query): before.get((card.uuid, query), 0) + 1
        for card in seen
        if isinstance(card, PhysicalCard)
        for query in card.failed
    }


def texts(failures: Failures, seen: Sequence[Seen]) -> dict[str, str]:
    """Return a text for each query that keeps failing, by what it is about."""
    return {
        f"{card.uuid} {query}": (
            f"GPU {card.uuid}: {query} fails ({why}), and the GPU is offered without it: "
            f"{_EFFECT[query]}"
        )
        for card in seen
        if isinstance(card, PhysicalCard)
        for query, why in card.failed.items()
        if failures.get((card.uuid, query), 0) > QUICK_CHECKS
    }
