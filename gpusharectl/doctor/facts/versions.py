"""Compare versions of Kubernetes and of gpushare (pure)."""

import re
from typing import Final

_VERSION: Final = re.compile(r"v?(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?.*", re.ASCII | re.DOTALL)

Version = tuple[int, int, int]


def read(text: str) -> Version | None:
    """Return major, minor and patch of ``v1.30.2-gke.1`` or ``0.1``; None for other text."""
    match = _VERSION.fullmatch(text)
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


def minor_of(text: str) -> tuple[int, int] | None:
    found = read(text)
    return None if found is None else found[:2]


def go_together(older: Version, newer: Version) -> bool:
    """Return true if these versions of gpushare's parts are at most one minor version apart."""
    return older[0] == newer[0] and newer[1] - older[1] <= 1


def shown(version: Version) -> str:
    return ".".join(map(str, version))
