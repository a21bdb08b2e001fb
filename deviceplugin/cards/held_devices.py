"""How the devices that containers hold appear in the device list, also Aliyun gpushare's (pure).

The kubelet admits every pod again when its node restarts, and often when it restarts itself while a
container runs for the second time. A pod whose devices are not on the list then fails for good. So
each ID of Aliyun gpushare's plugin stays listed for as long as its pod lives, in place of a free
unit of the GPU that its container has: a node's total does not change. Under a block the devices
that containers hold stay healthy: when a node restarts the kubelet rejects a pod for good whose
devices are not (allocateContainerResources in pkg/kubelet/cm/devicemanager/manager.go), and a block
is meant for new pods only.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final

from deviceplugin.cards import device_list
from gpushare.cards.device_list import MAX_MESSAGE_BYTES
from gpushare.cards.model import Inventory


@dataclass(frozen=True, slots=True)
class Inherited:
    """Of one GPU: IDs that are listed though they are not ours, and own IDs omitted for them."""

    ids: frozenset[str]
    left_out: frozenset[str]


_NO_IDS: Final[frozenset[str]] = frozenset()
_NOTHING: Final = Inherited(_NO_IDS, _NO_IDS)


@dataclass(frozen=True, slots=True)
class Listed:
    """Which IDs the list has of one GPU."""

    tag: str
    units: int
    inherited: Inherited

    def ids(self) -> list[str]:
        own = (device_list.device_id(self.tag, unit) for unit in range(self.units))
        kept = (text for text in own if text not in self.inherited.left_out)
        return [*kept, *sorted(self.inherited.ids)]


@dataclass(frozen=True, slots=True)
class HeldDevices:
    """The device IDs that containers of live pods hold, and what is inherited, by GPU."""

    ids: frozenset[str] = _NO_IDS
    inherited: Mapping[str, Inherited] = field(default_factory=dict)

    def of_cards(self, listed: Inventory, healthy: Container[str]) -> dict[str, frozenset[str]]:
        """Return what is held of the GPUs that are ``healthy`` themselves, by UUID."""
        by_tag: dict[str, set[str]] = {}
        for text in self.ids:
            if (parsed := device_list.parse_device_id(text)) is not None:
                by_tag.setdefault(parsed[0], set()).add(text)
        return {
            card.uuid: frozenset(by_tag.get(card.tag, ()))
            | self.inherited.get(card.uuid, _NOTHING).ids
            for card in listed.cards
            if card.uuid in healthy
        }


def listed_ids(listed: Inventory, found: Mapping[str, Inherited]) -> tuple[Listed, ...]:
    """Return which IDs ``message`` lists."""
    found = _fitting(listed, found)
    return tuple(Listed(c.tag, c.units, found.get(c.uuid, _NOTHING)) for c in listed.cards)


def message(
    listed: Inventory, found: Mapping[str, Inherited], kept: Mapping[str, frozenset[str]]
) -> bytes:
    """Return the serialized device list with inherited IDs; without, where it would be too long.

    ``kept`` are IDs, by UUID of their GPU, that are listed as healthy on an unhealthy GPU.
    """
    found = _fitting(listed, found)
    if not found and not kept:
        return device_list.message(listed)
    parts = []
    for card in listed.cards:
        mine, healthy = found.get(card.uuid), kept.get(card.uuid, _NO_IDS)
        if not card.units or (mine is None and not healthy):
            parts.append(device_list.message(replace(listed, cards=(card,))))
            continue
        shown = Listed(card.tag, card.units, mine or _NOTHING)
        parts.append(_block(shown, card.is_healthy, healthy))
    return b"".join(parts)


def _fitting(listed: Inventory, found: Mapping[str, Inherited]) -> Mapping[str, Inherited]:
    shown = {c.uuid: found[c.uuid] for c in listed.cards if c.units and c.uuid in found}
    size = device_list.worst_bytes(listed) + sum(
        len(device_list.one_by_one(each.ids, is_healthy=False)) for each in shown.values()
    )
    return shown if size <= MAX_MESSAGE_BYTES else {}


@lru_cache(maxsize=16)
def _block(listed: Listed, is_healthy: bool, kept: frozenset[str]) -> bytes:
    ids = listed.ids()
    healthy = [text for text in ids if is_healthy or text in kept]
    unhealthy = [text for text in ids if not is_healthy and text not in kept]
    return device_list.one_by_one(healthy, is_healthy=True) + device_list.one_by_one(
        unhealthy, is_healthy=False
    )
