"""The kubelet's device list: one device a unit, as bytes made once for each card (pure).

A device ID has five characters: two of the card's tag, three of the unit in base 62. The kubelet
limits the length of the list (``gpushare.cards.device_list``). A list that fits only while every
card is healthy would break the stream at the update that reports an unhealthy card, so the size is
that of the largest list.
"""

import hashlib
import itertools
import string
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from typing import Final

from deviceplugin.errors import ListTooLong
from gpushare.cards.device_list import (
    ID_LENGTH,
    MAX_DEVICES,
    MAX_MESSAGE_BYTES,
    UNHEALTHY,
    WARN_CARD_UNITS,
    WARN_DEVICES,
    WORST_DEVICE_BYTES,
)
from gpushare.cards.model import Inventory
from protos.deviceplugin.v1beta1 import api_pb2

DIGITS: Final = string.digits + string.ascii_uppercase + string.ascii_lowercase
TAG_LENGTH: Final = 2
UNIT_LENGTH: Final = ID_LENGTH - TAG_LENGTH
MAX_CARD_UNITS: Final = len(DIGITS) ** UNIT_LENGTH
HEALTHY: Final = "Healthy"

_BASE: Final = len(DIGITS)
_VALUES: Final = {digit: value for value, digit in enumerate(DIGITS)}
# Wire form, protobuf's encoding specification: a key byte (field << 3 | 2), a length byte, bytes.
_DEVICES_KEY: Final = b"\x0a"
_ID_HEAD: Final = b"\x0a" + bytes([ID_LENGTH])


def device_id(tag: str, unit: int) -> str:
    """The ID of one unit of the card with ``tag``."""
    high, low = divmod(unit, _BASE)
    return tag + DIGITS[high // _BASE] + DIGITS[high % _BASE] + DIGITS[low]


def parse_device_id(text: str) -> tuple[str, int] | None:
    """Tag and unit of an ID of ours; None for any other text."""
    if len(text) != ID_LENGTH or any(character not in _VALUES for character in text):
        return None
    first, second, third = (_VALUES[character] for character in text[TAG_LENGTH:])
    return text[:TAG_LENGTH], (first * _BASE + second) * _BASE + third


def unknown(device_ids: Iterable[str], inventory: Inventory) -> list[str]:
    """The IDs that belong to no card of the inventory, in order."""
    tags = {card.tag for card in inventory.cards}
    return sorted(
        text for text in device_ids if len(text) != ID_LENGTH or text[:TAG_LENGTH] not in tags
    )


def is_tag(text: str) -> bool:
    """Whether it can stand for a card in a device ID."""
    return len(text) == TAG_LENGTH and all(character in _VALUES for character in text)


def tag_of(uuid: str, taken: Collection[str]) -> str:
    """A tag for a card, the same for the same UUID unless another card holds it already."""
    start = int.from_bytes(hashlib.sha256(uuid.encode()).digest()[:8], "big")
    for step in range(_BASE**TAG_LENGTH):
        high, low = divmod((start + step) % _BASE**TAG_LENGTH, _BASE)
        tag = DIGITS[high] + DIGITS[low]
        if tag not in taken:
            return tag
    raise ListTooLong(f"all {_BASE**TAG_LENGTH} card tags are taken: no machine has so many cards")


def message(inventory: Inventory) -> bytes:
    """A serialised ListAndWatchResponse with every unit of every card."""
    return b"".join(_block(card.tag, card.units, card.is_healthy) for card in inventory.cards)


def one_by_one(ids: Iterable[str], *, is_healthy: bool) -> bytes:
    """The part of a ListAndWatchResponse that names just these devices, of whatever form."""
    health = HEALTHY if is_healthy else UNHEALTHY
    listed = [api_pb2.Device(ID=text, health=health) for text in ids]
    written: bytes = api_pb2.ListAndWatchResponse(devices=listed).SerializeToString()
    return written


def check_size(inventory: Inventory, card_mib: Sequence[int]) -> None:
    """Nothing if the inventory's list fits at its worst; else ListTooLong.

    ``card_mib`` is what each card has to share; the text names the least unit that would fit.
    """
    units = sum(card.units for card in inventory.cards)
    size = worst_bytes(inventory)
    largest = max((card.units for card in inventory.cards), default=0)
    if size <= MAX_MESSAGE_BYTES and largest <= MAX_CARD_UNITS:
        return
    raise ListTooLong(
        f"a unit of {inventory.unit_mib} MiB makes {units} devices, {size} bytes when all are "
        f"unhealthy, and the kubelet takes {MAX_MESSAGE_BYTES} (and a card {MAX_CARD_UNITS} "
        f"units): set --memory-unit={least_unit_mib(card_mib)}MiB or larger, for all nodes and "
        f"the extender alike"
    )


def worst_bytes(inventory: Inventory) -> int:
    """The size of the list when every card is unhealthy."""
    return sum(card.units for card in inventory.cards) * WORST_DEVICE_BYTES


def warnings(inventory: Inventory, card_mib: Sequence[int]) -> list[tuple[str, str]]:
    """Reason and text of what goes badly with so many units, though it goes."""
    found = []
    units = sum(card.units for card in inventory.cards)
    if units > WARN_DEVICES:
        text = (
            f"a unit of {inventory.unit_mib} MiB makes {units} devices on this node: above "
            f"{WARN_DEVICES}, each large pod keeps the kubelet from admitting others for 0.1 s "
            f"and more. {_advice(least_unit_mib(card_mib, WARN_DEVICES))}"
        )
        found.append(("DeviceListLarge", text))
    largest = max((card.units for card in inventory.cards), default=0)
    if largest > WARN_CARD_UNITS:
        least = least_unit_mib(card_mib, max_card_units=WARN_CARD_UNITS)
        text = (
            f"a unit of {inventory.unit_mib} MiB makes {largest} units on one card: from "
            f"Kubernetes 1.36 on a pod's status names each unit that it holds, and the API server "
            f"refuses the status of a pod that holds more than about 74900. {_advice(least)}"
        )
        found.append(("CardUnitsMany", text))
    return found


def _advice(unit_mib: int) -> str:
    return f"--memory-unit={unit_mib}MiB or larger, for all nodes and the extender alike, avoids it"


def least_unit_mib(
    card_mib: Sequence[int],
    max_devices: int = MAX_DEVICES,
    max_card_units: int = MAX_CARD_UNITS,
) -> int:
    """The finest unit, in MiB, with which these cards make no more devices and units a card."""

    def fits(unit: int) -> bool:
        units = [mib // unit for mib in card_mib]
        return sum(units) <= max_devices and max(units, default=0) <= max_card_units

    low, high = 1, max([1, *card_mib])
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle + 1, high)
    return low


def choose(
    available: Iterable[str], must: Sequence[str], size: int, tags: Sequence[str]
) -> list[str]:
    """``size`` of the available IDs: ``must`` first, then equal parts of ``tags``, then others.

    One pass over ``available``, which may hold 200,000. Fewer if there are no more.
    """
    chosen = dict.fromkeys(must)
    part = size // len(tags) if tags else 0
    wanted = dict.fromkeys(tags, part)
    for text in chosen:
        if text[:TAG_LENGTH] in wanted:
            wanted[text[:TAG_LENGTH]] -= 1
    on_card: list[str] = []
    others: list[str] = []
    missing = size - len(chosen)
    for text in available:
        if text in chosen:
            continue
        tag = text[:TAG_LENGTH]
        if wanted.get(tag, 0) > 0 and len(text) == ID_LENGTH:
            wanted[tag] -= 1
            on_card.append(text)
        elif len(others) < missing:
            others.append(text)
    return [*chosen, *on_card, *others][: max(size, 0)]


@lru_cache(maxsize=64)
def _block(tag: str, units: int, is_healthy: bool) -> bytes:
    if not units:
        return b""
    health = (HEALTHY if is_healthy else UNHEALTHY).encode()
    tail = b"\x12" + bytes([len(health)]) + health
    length = len(_ID_HEAD) + ID_LENGTH + len(tail)
    head = _DEVICES_KEY + bytes([length]) + _ID_HEAD + tag.encode()
    digits = [digit.encode() for digit in DIGITS]
    numbers = itertools.islice(itertools.product(digits, repeat=UNIT_LENGTH), units)
    return head + (tail + head).join(map(b"".join, numbers)) + tail
