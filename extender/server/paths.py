"""Paths and route names of the extender's HTTP endpoints."""

from typing import Final

from gpushare.live_page import feed
from gpushare.live_page.files import PAGE

DECIDING: Final = frozenset({"filter", "prioritize", "preempt", "bind"})  # route names
# Route names of what only the leader knows, of all namespaces and of one.
GANGS: Final = "gangs"
NAMESPACE_GANGS: Final = "namespace_gangs"
QUEUE: Final = "queue"
NAMESPACE_QUEUE: Final = "namespace_queue"
QUOTA: Final = "quota"
NAMESPACE_QUOTA: Final = "namespace_quota"
OF_LEADER: Final = frozenset(
    {GANGS, NAMESPACE_GANGS, QUEUE, NAMESPACE_QUEUE, QUOTA, NAMESPACE_QUOTA}
)
HEALTH: Final = frozenset({"/healthz", "/readyz", "/version"})
METRICS: Final = "/metrics"
ADMISSION: Final = "admission"  # route name of the webhook that sets the scheduler
GATING: Final = "gating"  # route name of the webhook that adds our scheduling gate
USAGE: Final = "usage"  # route name of what pods really use
NAMESPACE_USAGE: Final = "namespace_usage"
CHANGES: Final = feed.PATH  # route name of the live page's stream
NAMESPACE_CHANGES: Final = "namespace_changes"
STREAMS: Final = frozenset({CHANGES, NAMESPACE_CHANGES})


def is_page_file(path: str) -> bool:
    """Return whether a path is the live page or one of its files, which show no cluster."""
    return path == PAGE or path.startswith(f"{PAGE}/")
