"""Removes the startup taint from this node once the plugin serves.

The taint is set where nodes are created, so that no pod arrives before the plugin. A pod that
arrives earlier is rejected for good, or started without a GPU where the kubelet knows no plugin.
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

CHECK_SECONDS: Final = 1.0


class NodeWriter(Protocol):
    async def change_node(self, name: str, operations: Sequence[Mapping[str, Any]]) -> None: ...


class StartupTaint:
    """``node`` returns the Node as the watch shows it, ``why_not_ready`` why the plugin is not."""

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
        """Check until cancelled: the taint may be set again, and the Node recreated."""
        backoff = Backoff(CHECK_SECONDS, 30.0)
        while True:
            try:
                await self.check()
            except ApiError as err:
                log.warning("the startup taint stays", extra={"why": str(err)})
                await asyncio.sleep(backoff.next())
            else:
                backoff.reset()
                await asyncio.sleep(CHECK_SECONDS)

    async def check(self) -> None:
        """Remove the taint if it is set and the plugin serves. Raises ApiError."""
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
    """Return the JSON patch that removes the taint with any effect; empty if it is not set.

    A patch by index fails where the list has changed since, and keeps all fields of other taints.
    """
    places = [place for place, taint in enumerate(node.taints) if taint.key == TAINT_NOT_READY]
    operations: list[dict[str, Any]] = []
    for place in reversed(places):
        path = f"/spec/taints/{place}"
        operations.append({"op": "test", "path": f"{path}/key", "value": TAINT_NOT_READY})
        operations.append({"op": "remove", "path": path})
    return operations
