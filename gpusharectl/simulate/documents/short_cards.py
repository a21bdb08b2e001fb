"""Read ``gpus:`` of a Node in a file, a short form of an inventory (pure).

gpus: 2 x 16                    # two GPUs of 16 units
gpus: [4 x 16 Tesla T4, 1 x 80 NVIDIA A100]
gpus: [{units: 16, health: unhealthy}, {count: 3, units: 16, model: Tesla T4, enforces: driver}]

The key was ``cards`` once, and is still read.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

from gpushare.cards.model import Card, Health, Inventory
from gpushare.contract import BY_DRIVER, BY_FRAMEWORK, BY_NOTHING
from gpushare.objects.quantity import MAX_UNITS
from gpusharectl.manifests.kubernetes_keys import Path
from gpusharectl.manifests.yaml_lines import Document

KEYS: Final = ("gpus", "cards")
MAX_CARDS: Final = 64  # of one node
_TEXT: Final = re.compile(r"\s*(\d{1,9})\s*x\s*(\d{1,18})(?:\s+(\S.*?))?\s*", re.ASCII)
_WANTED: Final = "write a number of GPUs and their units: 2 x 16, or 2 x 16 Tesla T4"
_OF_ENTRY: Final = ("count", "units", "model", "health", "enforces")
_ENFORCES: Final = (BY_DRIVER, BY_FRAMEWORK, BY_NOTHING)


def key_in(doc: Document) -> str:
    """Return the key with the GPUs of a node, empty if there is none.

    Raises SettingsError if a document has the key by both names.
    """
    found = [key for key in KEYS if key in doc.value]
    if len(found) > 1:
        raise doc.wrong((found[1],), f"not together with {found[0]}, which means the same")
    return found[0] if found else ""


def stock(doc: Document, node: str, unit_mib: int) -> Inventory:
    """Return the GPUs of a node, GPU-<node>-0 and so on; SettingsError if invalid."""
    key = key_in(doc)
    value = doc.value[key]
    entries = value if isinstance(value, list) else [value]
    cards: list[Card] = []
    for number, entry in enumerate(entries):
        place: Path = (key, number) if isinstance(value, list) else (key,)
        for units, model, health, enforces in _entry(doc, place, entry):
            index = len(cards)
            made = Card(
                index=index,
                uuid=f"GPU-{node}-{index}",
                units=units,
                health=health,
                minor=index,
                model=model,
                memory_mib=units * unit_mib,
                enforces=enforces,
            )
            cards.append(made)
    if not 1 <= len(cards) <= MAX_CARDS:
        raise doc.wrong((key,), f"{len(cards)} GPUs: a node can have 1 to {MAX_CARDS} here")
    return Inventory(unit_mib, tuple(cards), plugin="simulated", binding="late")


def _entry(doc: Document, place: Path, entry: Any) -> Iterator[tuple[int, str, Health, str]]:
    match = _TEXT.fullmatch(entry) if isinstance(entry, str) else None
    if match is not None:
        entry = {"count": int(match[1]), "units": int(match[2]), "model": match[3] or ""}
    if not isinstance(entry, dict):
        raise doc.wrong(place, f"{entry!r:.60}: {_WANTED}")
    for key in entry:
        if key not in _OF_ENTRY:
            raise doc.wrong((*place, key), f"unknown key: the keys are {', '.join(_OF_ENTRY)}")
    count = _number(doc, place, entry, "count", MAX_CARDS)
    units = _number(doc, place, entry, "units", MAX_UNITS // MAX_CARDS // 2**20)
    model, health = entry.get("model", ""), entry.get("health", Health.HEALTHY.value)
    if not isinstance(model, str):
        raise doc.wrong((*place, "model"), f"{model!r:.60}: write it in quotes")
    if health not in list(Health):
        raise doc.wrong((*place, "health"), f"{health!r:.60}: write {' or '.join(Health)}")
    enforces = entry.get("enforces", "")
    if enforces and enforces not in _ENFORCES:
        wanted = f"write {' or '.join(_ENFORCES)}"
        raise doc.wrong((*place, "enforces"), f"{enforces!r:.60}: {wanted}")
    for _ in range(count):
        yield units, model, Health(health), enforces


def _number(doc: Document, place: Path, entry: dict[str, Any], key: str, most: int) -> int:
    value = entry.get(key, 1 if key == "count" else None)
    if type(value) is not int or not 1 <= value <= most:
        found = "is missing" if value is None else f"{value!r:.40}"
        raise doc.wrong((*place, key), f"{found}: write a number from 1 to {most}")
    return value
