"""Device IDs of an older plugin that containers hold still, and how they stay on the list (pure).

The kubelet admits every pod again when its node comes up anew, and often when it starts itself
while a container runs for the second time. A pod whose devices are not on the list then has failed
for good. So each such ID stays listed for as long as its pod lives, in the place of a free unit of
the card that its container has: a node's total does not change.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from deviceplugin.allocation import allocate_response
from deviceplugin.cards import device_list
from deviceplugin.errors import PluginError
from deviceplugin.kubelet.checkpoint import Entry
from gpushare.cards.device_list import MAX_MESSAGE_BYTES
from gpushare.cards.model import Inventory


@dataclass(frozen=True, slots=True)
class Inherited:
    """Of one card: IDs that are listed though they are not ours, and own ones left out for them."""

    ids: frozenset[str]
    left_out: frozenset[str]


_NO_IDS: Final[frozenset[str]] = frozenset()
_NOTHING: Final = Inherited(_NO_IDS, _NO_IDS)


def inherited(
    entries: Iterable[Entry], inventory: Inventory, before: Mapping[str, Inherited]
) -> dict[str, Inherited]:
    """What is inherited, by the UUID of the card; of the first one where it cannot be told.

    Own IDs that were left out ``before`` stay so while they suffice: the kubelet may be giving away
    any other one just now. None that the checkpoint names is left out, even if the card's list
    grows longer than its units.
    """
    own: set[str] = set()
    others: dict[str, set[str]] = {}
    for entry in entries:
        unknown = device_list.unknown(entry.device_ids, inventory)
        own |= entry.device_ids.difference(unknown)
        if unknown:
            others.setdefault(_card_of(entry, inventory), set()).update(unknown)
    found = {}
    for card in inventory.cards:
        if ids := others.get(card.uuid):
            units = {device_list.device_id(card.tag, unit): unit for unit in range(card.units)}
            free = units.keys() - own
            kept = before[card.uuid].left_out if card.uuid in before else frozenset()
            best = sorted(free, key=lambda text: (text not in kept, -units[text]))
            found[card.uuid] = Inherited(frozenset(ids), frozenset(best[: len(ids)]))
    return found


def _card_of(entry: Entry, inventory: Inventory) -> str:
    """The card that its container was given.

    Late binding has not said which; and the older plugin's own answer may name none.
    """
    try:
        given = allocate_response.read(entry.answer, inventory).cards
    except PluginError:
        given = frozenset()
    usable = [card.uuid for card in inventory.cards if card.units]
    return next((uuid for uuid in usable if uuid in given), usable[0] if usable else "")


def all_ids(found: Mapping[str, Inherited]) -> frozenset[str]:
    """Every ID that is inherited."""
    return frozenset[str]().union(*(each.ids for each in found.values()))


def message(
    listed: Inventory, found: Mapping[str, Inherited], kept: Mapping[str, frozenset[str]]
) -> bytes:
    """The serialised device list with what is inherited; without, where it would be too long.

    ``kept`` are IDs, by UUID of their card, that are listed as healthy on an unhealthy card.
    """
    if not found and not kept:
        return device_list.message(listed)
    parts = []
    size = device_list.worst_bytes(listed)
    for card in listed.cards:
        mine, healthy = found.get(card.uuid), kept.get(card.uuid, _NO_IDS)
        if not card.units or (mine is None and not healthy):
            parts.append(device_list.message(replace(listed, cards=(card,))))
            continue
        mine = mine or _NOTHING
        parts.append(_block(card.tag, card.units, card.is_healthy, mine, healthy))
        size += len(_block(card.tag, 0, False, mine, _NO_IDS))
    return b"".join(parts) if size <= MAX_MESSAGE_BYTES else device_list.message(listed)


@lru_cache(maxsize=16)
def _block(
    tag: str, units: int, is_healthy: bool, mine: Inherited, healthy: frozenset[str]
) -> bytes:
    own = (device_list.device_id(tag, unit) for unit in range(units))
    ids = [*(text for text in own if text not in mine.left_out), *sorted(mine.ids)]
    well = [text for text in ids if is_healthy or text in healthy]
    ill = [text for text in ids if not is_healthy and text not in healthy]
    return device_list.one_by_one(well, is_healthy=True) + device_list.one_by_one(
        ill, is_healthy=False
    )
