"""Reads from a device plugin's metrics what the pods of its node really use (pure)."""

import re
from collections.abc import Generator, Mapping
from typing import Final

import msgspec

USED: Final = "gpushare_deviceplugin_pod_used_mib"
MOST_CHARACTERS: Final = 2**16  # of lines with amounts: 140 pods with the longest names
MOST_MIB: Final = 2**53
_PREFIX: Final = "\ngpushare_deviceplugin_"
# With measurements on, at least one of these is there for each GPU.
_MEASURED: Final = (
    "gpushare_deviceplugin_others_used_mib{",
    "gpushare_deviceplugin_pod_asked_mib{",
)
# The plugin writes labels in the order of their names, and no name has a character to escape.
_LINE: Final = re.compile(
    USED + r'\{card="[^"\\]*",namespace="([^"\\]+)",pod="([^"\\]+)",uuid="([^"\\]+)"\}'
    r" ([0-9]+(?:\.[0-9]+)?(?:e\+[0-9]{1,2})?)"
)
NOT_ENABLED: Final = (
    "not measured. To enable it, add the component process-memory (docs/install.md)."
)
UNREADABLE: Final = "the device plugin's metrics cannot be read"


class NodeUsage(msgspec.Struct, frozen=True, omit_defaults=True):
    """``cards`` is MiB by the GPU's UUID and by ``namespace/name`` of the pod, or None: ``why``."""

    cards: Mapping[str, Mapping[str, int]] | None = None
    why: str = ""


def read_usage(page: str) -> Generator[None, None, NodeUsage]:
    """Read the metrics of one plugin, in short steps."""
    found: dict[str, dict[str, int]] = {}
    is_measured, characters = False, 0
    text = f"\n{page}\n"
    begin = text.find(_PREFIX)
    while begin >= 0:
        yield
        end = text.index("\n", begin + 1)
        line = text[begin + 1 : end]
        begin = text.find(_PREFIX, end)
        is_measured = is_measured or line.startswith(_MEASURED)
        if not line.startswith(f"{USED}{{"):
            continue
        characters += len(line)
        match = _LINE.fullmatch(line) if characters <= MOST_CHARACTERS else None
        mib = float(match[4]) if match else MOST_MIB
        if match is None or mib >= MOST_MIB:
            return NodeUsage(why=UNREADABLE)
        found.setdefault(match[3], {})[f"{match[1]}/{match[2]}"] = int(mib)
    return NodeUsage(cards=found) if is_measured else NodeUsage(why=NOT_ENABLED)
