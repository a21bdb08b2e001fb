"""Paths and route names of the extender's HTTP endpoints."""

from typing import Final

from gpushare.contract import EXTENDER_PREFIX

DECIDING: Final = frozenset({"filter", "prioritize", "preempt", "bind"})  # route names
HEALTH: Final = frozenset({"/healthz", "/readyz", "/version"})
METRICS: Final = "/metrics"
PAGE: Final = f"{EXTENDER_PREFIX}/page"  # the live page and its files
CHANGES: Final = "changes"  # route name of the live page's stream


def is_page_file(path: str) -> bool:
    """Return whether a path is the live page or one of its files, which show no cluster."""
    return path == PAGE or path.startswith(f"{PAGE}/")
