"""Create Events, which ``kubectl describe`` shows with their objects."""

import datetime as dt
import logging
from collections.abc import Mapping
from typing import Any, Final, Literal, Protocol

from gpushare.clock import Clock
from gpushare.errors import ApiError
from gpushare.objects.model import Node, Pod

log = logging.getLogger(__name__)

MAX_MESSAGE: Final = 1024  # the API server's limit
_NAME: Final = 200  # of 253, which include the time after it


def made(
    about: Pod | Node,
    reason: str,
    message: str,
    *,
    component: str,
    clock: Clock,
    kind: Literal["Normal", "Warning"] = "Warning",
) -> dict[str, Any]:
    """Return an Event with a unique name, so that a repeated write creates no second one."""
    meta = about.metadata
    now_ns = clock.wall_ns()
    now = rfc3339(now_ns)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{meta.name[:_NAME].rstrip('-.')}.{now_ns:x}",
            "namespace": meta.namespace or "default",
        },
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Node" if isinstance(about, Node) else "Pod",
            "name": meta.name,
            "namespace": meta.namespace or None,
            # kubectl selects a node's Events by its name as the uid.
            "uid": meta.name if isinstance(about, Node) else meta.uid,
        },
        "reason": reason,
        "message": message[:MAX_MESSAGE],
        "type": kind,
        "source": {"component": component},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }


class Recorder(Protocol):
    """A writer of Events: ``Kube``, or a double in tests."""

    async def create_event(self, namespace: str, event: Mapping[str, Any], /) -> None: ...


async def record(
    kube: Recorder, about: Pod | Node, reason: str, message: str, *, component: str, clock: Clock
) -> None:
    """Write one Event; an ApiError is logged, because Events are not essential."""
    event = made(about, reason, message, component=component, clock=clock)
    try:
        await kube.create_event(event["metadata"]["namespace"], event)
    except ApiError as err:
        log.warning("event not recorded", extra={"reason": reason, "why": str(err)})


def rfc3339(wall_ns: int) -> str:
    return dt.datetime.fromtimestamp(wall_ns / 1e9, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
