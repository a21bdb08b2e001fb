"""The kubelet's device list: one device a unit, as bytes built once for each GPU (pure).

A device ID has five characters: two of the GPU's tag, three of the unit in base 62. The kubelet
limits the length of the list (``gpushare.cards.device_list``). A list that fits only while every
GPU is healthy would break the stream at the update that reports an unhealthy GPU, so the size is
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
    """Return the ID of one unit of the GPU with ``tag``."""
    high, low = divmod(unit, _BASE)
    return tag + DIGITS[high // _BASE] + DIGITS[high % _BASE] + DIGITS[low]


def parse_device_id(text: str) -> tuple[str, int] | None:
    """Return tag and unit of a device ID; None for any other text."""
    if len(text) != ID_LENGTH or any(character not in _VALUES for character in text):
        return None
    first, second, third = (_VALUES[character] for character in text[TAG_LENGTH:])
    return text[:TAG_LENGTH], (first * _BASE + second) * _BASE + third


def unknown(device_ids: Iterable[str], inventory: Inventory) -> list[str]:
    """Return the IDs that belong to no GPU of the inventory, in order."""
    tags = {card.tag for card in inventory.cards}
    return sorted(
        text for text in device_ids if len(text) != ID_LENGTH or text[:TAG_LENGTH] not in tags
    )


def is_tag(text: str) -> bool:
    """Whether it can stand for a GPU in a device ID."""
    return len(text) == TAG_LENGTH and all(character in _VALUES for character in text)


def tag_of(uuid: str, taken: Collection[str]) -> str:
    """Return a tag for a GPU: always the same for a UUID, unless another GPU has it already."""
    start = int.from_bytes(hashlib.sha256(uuid.encode()).digest()[:8], "big")
    for step in range(_BASE**TAG_LENGTH):
        high, low = divmod((start + step) % _BASE**TAG_LENGTH, _BASE)
        tag = DIGITS[high] + DIGITS[low]
        if tag not in taken:
            return tag
    raise ListTooLong(f"all {_BASE**TAG_LENGTH} GPU tags are in use: no machine has so many GPUs")


def message(inventory: Inventory) -> bytes:
    """Return a serialized ListAndWatchResponse with every unit of every GPU."""
    return b"".join(_block(card.tag, card.units, card.is_healthy) for card in inventory.cards)


def one_by_one(ids: Iterable[str], *, is_healthy: bool) -> bytes:
    """Return the part of a ListAndWatchResponse with exactly these devices, of any form."""
    health = HEALTHY if is_healthy else UNHEALTHY
    listed = [api_pb2.Device(ID=text, health=health) for text in ids]
    written: bytes = api_pb2.ListAndWatchResponse(devices=listed).SerializeToString()
    return written


def check_size(inventory: Inventory, card_mib: Sequence[int]) -> None:
    """Raise ListTooLong if the inventory's list at its largest does not fit.

    ``card_mib`` is the memory that each GPU shares; the text names the smallest unit that fits.
    """
    units = sum(card.units for card in inventory.cards)
    size = worst_bytes(inventory)
    largest = max((card.units for card in inventory.cards), default=0)
    if size <= MAX_MESSAGE_BYTES and largest <= MAX_CARD_UNITS:
        return
    raise ListTooLong(
        f"a unit of {inventory.unit_mib} MiB makes {units} devices, {size} bytes when all are "
        f"unhealthy, and the kubelet accepts {MAX_MESSAGE_BYTES} (and a GPU {MAX_CARD_UNITS} "
        f"units): set --memory-unit={least_unit_mib(card_mib)}MiB or larger, for all nodes and "
        f"the extender alike"
    )


def worst_bytes(inventory: Inventory) -> int:
    """Return the size of the list when every GPU is unhealthy."""
    return sum(card.units for card in inventory.cards) * WORST_DEVICE_BYTES


def warnings(inventory: Inventory, card_mib: Sequence[int]) -> list[tuple[str, str]]:
    """Return reason and text of each problem that so many units cause, though they work."""
    found = []
    units = sum(card.units for card in inventory.cards)
    if units > WARN_DEVICES:
        text = (
            f"a unit of {inventory.unit_mib} MiB makes {units} devices on this node: above "
            f"{WARN_DEVICES}, each large pod keeps the kubelet from admitting others for 0.1 s "
            f"or more. {_advice(least_unit_mib(card_mib, WARN_DEVICES))}"
        )
        found.append(("DeviceListLarge", text))
    largest = max((card.units for card in inventory.cards), default=0)
    if largest > WARN_CARD_UNITS:
        least = least_unit_mib(card_mib, max_card_units=WARN_CARD_UNITS)
        text = (
            f"a unit of {inventory.unit_mib} MiB makes {largest} units on one GPU: since "
            f"Kubernetes 1.36 a pod's status names each unit that it uses, and the API server "
            f"rejects the status of a pod that uses more than about 74900. {_advice(least)}"
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
    """Return the smallest unit, in MiB, that makes no more devices, and units of one GPU."""

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
    """Return ``size`` available IDs: ``must`` first, then equal parts of ``tags``, then others.

    One pass over ``available``, which may have 200,000 IDs. Fewer if there are no more.
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
