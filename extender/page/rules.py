"""Reads from a device plugin's metrics what is really used of its node's GPUs (pure)."""

import re
from collections import Counter
from collections.abc import Generator
from typing import Final

import msgspec

from gpushare.contract import (
    METRIC_OTHERS_USED,
    METRIC_POD_ASKED,
    METRIC_POD_SM,
    METRIC_POD_USED,
)

MOST_CHARACTERS: Final = 2**20  # of lines with amounts: 700 containers with the longest names
MOST_MIB: Final = 2**41  # so that sums of all lines stay exact
OTHERS: Final = 3  # amounts of a measured GPU: of the host, of ended pods, of unknown processes
_PREFIX: Final = "\ngpushare_deviceplugin_"
_ASKED: Final = f"{METRIC_POD_ASKED}{{"
_USED: Final = f"{METRIC_POD_USED}{{"
_SM: Final = f"{METRIC_POD_SM}{{"
_OTHERS: Final = f"{METRIC_OTHERS_USED}{{"
# The plugin writes labels in the order of their names, and no name has a character to escape. An
# older plugin does not name containers.
_LABELS: Final = re.compile(
    r'(?:by="[a-z-]+",)?card="[^"\\]*",(?:container="([^"\\]*)",)?'
    r'(?:namespace="([^"\\]+)",pod="([^"\\]+)",)?uuid="([^"\\]+)"\}'
    r" ([0-9]+(?:\.[0-9]+)?(?:e\+[0-9]{1,2})?)"
)
NOT_ENABLED: Final = (
    "not measured. To enable it, add the component process-memory (plugin.processMemory: true)."
)
UNREADABLE: Final = "the device plugin's metrics cannot be read"


class CardUsage(msgspec.Struct):
    """What is used of a GPU: by pods, by ``namespace/name``, and by processes of no live pod.

    ``pods`` and ``others`` are MiB, ``sm`` is percent of the multiprocessors. A pod of which not
    all is known is not in ``pods``. ``is_partial``: the plugin does not know all amounts.
    """

    pods: dict[str, int] = {}
    sm: dict[str, int] = {}
    others: int = 0
    is_partial: bool = msgspec.field(name="isPartial", default=False)


class NodeUsage(msgspec.Struct, frozen=True, omit_defaults=True):
    """``cards`` are the measured GPUs by UUID, or None: ``why``."""

    cards: dict[str, CardUsage] | None = None
    why: str = ""


def of_namespace(found: NodeUsage, namespace: str) -> NodeUsage:
    """Return what only the pods of one namespace use."""
    if found.cards is None:
        return found

    def ours(amounts: dict[str, int]) -> dict[str, int]:
        return {pod: each for pod, each in amounts.items() if pod.startswith(f"{namespace}/")}

    cards = {
        uuid: CardUsage(ours(card.pods), ours(card.sm), is_partial=True)
        for uuid, card in found.cards.items()
    }
    return NodeUsage(cards=cards)


def read_usage(page: str) -> Generator[None, None, NodeUsage]:
    """Read the metrics of one plugin, in short steps."""
    found: dict[str, CardUsage] = {}
    asked: set[tuple[str, str, str]] = set()  # UUID, pod and container
    used: set[tuple[str, str, str]] = set()
    others: Counter[str] = Counter()  # amounts by UUID
    characters = 0
    text = f"\n{page}\n"
    begin = text.find(_PREFIX)
    while begin >= 0:
        yield
        end = text.index("\n", begin + 1)
        line = text[begin + 1 : end]
        begin = text.find(_PREFIX, end)
        kind = next((each for each in (_ASKED, _USED, _SM, _OTHERS) if line.startswith(each)), None)
        if kind is None:
            continue
        characters += len(line)
        match = _LABELS.fullmatch(line, len(kind)) if characters <= MOST_CHARACTERS else None
        amount = float(match[5]) if match else MOST_MIB
        if match is None or amount >= MOST_MIB or (match[2] is None) != (kind == _OTHERS):
            return NodeUsage(why=UNREADABLE)
        container, uuid, pod = match[1] or "", match[4], f"{match[2]}/{match[3]}"
        card = found.setdefault(uuid, CardUsage())
        if kind == _OTHERS:
            card.others += int(amount)
            others[uuid] += 1
        elif kind == _ASKED:
            asked.add((uuid, pod, container))
        elif kind == _SM:
            card.sm[pod] = card.sm.get(pod, 0) + int(amount)
        else:
            card.pods[pod] = card.pods.get(pod, 0) + int(amount)
            used.add((uuid, pod, container))
    for uuid, card in found.items():
        yield
        card.is_partial = others[uuid] < OTHERS
    for uuid, pod, _ in asked - used:
        yield
        found[uuid].is_partial = True
        found[uuid].pods.pop(pod, None)
    return NodeUsage(cards=found) if found else NodeUsage(why=NOT_ENABLED)
