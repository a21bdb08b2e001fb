"""The Events that the Node should have now, by what they are about (pure)."""

from collections.abc import Collection, Mapping
from typing import Final

from deviceplugin.cards import device_list
from deviceplugin.cards.survey import Survey
from deviceplugin.errors import ListTooLong
from gpushare.cards.model import Inventory

UNIT_BLOCK: Final = "unit"
LIMIT_BLOCK: Final = "memory-limit"
LIST: Final = "list"

Notices = dict[str, tuple[str, str]]  # to reason and text


def notices(
    survey: Survey,
    listed: Inventory,
    *,
    unhealthy: Mapping[str, str],
    blocks: Mapping[str, str],
    unit_notice: str,
    unlisted: Collection[str],
    forgotten: Mapping[str, str],
) -> Notices:
    """Return all notices; with LIST among them nothing can be offered.

    ``unhealthy`` has the reason for each GPU by UUID, ``blocks`` that of each block by name.
    ``unlisted`` are the UUIDs that the list of ``listed`` omits. ``forgotten`` has a text for each
    GPU that has just been forgotten, by UUID.
    """
    found = {
        uuid: ("CardUnhealthy", f"GPU {uuid} is unhealthy: {why}")
        for uuid, why in unhealthy.items()
    }
    for name, why in blocks.items():
        if name != UNIT_BLOCK:
            found[name] = ("GpushareNodeBlocked", why)
    for card, why in survey.unlisted.items():
        found[card] = ("CardUnreadable", f"GPU {card} cannot be shared: {why}")
    for about, text in survey.failing.items():
        found[about] = ("CardQueryFails", text)
    for uuid, text in forgotten.items():
        found[f"{uuid} forgotten"] = ("CardForgotten", text)
    if unit_notice:
        found[UNIT_BLOCK] = ("MemoryUnitChanged", unit_notice)
    usable = [
        mib
        for card, mib in zip(survey.inventory.cards, survey.usable_mib, strict=True)
        if card.uuid not in unlisted
    ]
    try:
        device_list.check_size(listed, usable)
    except ListTooLong as err:
        found[LIST] = ("MemoryUnitTooFine", str(err))
    else:
        for reason, text in device_list.warnings(listed, usable):
            found[reason] = (reason, text)
    return found
