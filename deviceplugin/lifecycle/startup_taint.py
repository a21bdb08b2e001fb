"""Takes the startup taint off this node once the plugin serves.

Whoever makes nodes sets it, so that no pod comes before the plugin. A pod that comes earlier is
rejected for good, or started without a card where the kubelet knows of no plugin at all.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, Protocol

from gpushare.contract import TAINT_NOT_READY
from gpushare.errors import ApiError
from gpushare.kube.backoff import Backoff
from gpushare.objects.model import Node

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0


class NodeWriter(Protocol):
    async def change_node(self, name: str, operations: Sequence[Mapping[str, Any]]) -> None: ...


class StartupTaint:
    """``node`` gives the Node as the watch shows it, ``why_not_ready`` why the plugin is not."""

    def __init__(
        self,
        kube: NodeWriter,
        node: Callable[[], Node | None],
        why_not_ready: Callable[[], Collection[str]],
    ) -> None:
        self._kube = kube
        self._node = node
        self._why_not_ready = why_not_ready
        self._removed_at = ""  # the Node's resourceVersion, until the watch shows another

    async def run(self) -> None:
        """Until cancelled: the taint may be set again, and the Node made anew."""
        backoff = Backoff(LOOK_SECONDS, 30.0)
        while True:
            try:
                await self.look()
            except ApiError as err:
                log.warning("the startup taint stays", extra={"why": str(err)})
                await asyncio.sleep(backoff.next())
            else:
                backoff.reset()
                await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Take the taint off if it is there and the plugin serves. Raises ApiError."""
        node = self._node()
        if node is None or node.metadata.resource_version == self._removed_at:
            return
        operations = removal(node)
        if not operations or self._why_not_ready():
            return
        await self._kube.change_node(node.name, operations)
        self._removed_at = node.metadata.resource_version
        log.info("startup taint removed", extra={"node": node.name})


def removal(node: Node) -> list[dict[str, Any]]:
    """Return the JSON patch that takes the taint off, with whatever effects; empty if it has none.

    A patch by place fails where the list has changed since, and keeps what is not read of others.
    """
    places = [place for place, taint in enumerate(node.taints) if taint.key == TAINT_NOT_READY]
    operations: list[dict[str, Any]] = []
    for place in reversed(places):
        path = f"/spec/taints/{place}"
        operations.append({"op": "test", "path": f"{path}/key", "value": TAINT_NOT_READY})
        operations.append({"op": "remove", "path": path})
    return operations
