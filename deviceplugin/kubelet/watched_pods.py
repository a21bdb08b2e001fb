"""The pods of this node as the API server shows them: late at times, never needed to answer."""

import asyncio
import logging
from collections.abc import Iterator

from deviceplugin.kubelet.node_pod import NodePod
from gpushare.annotations.edited_decisions import keep_decision
from gpushare.objects.model import Pod

log = logging.getLogger(__name__)


class NodePods:
    """The handler of an informer on this node's pods.

    ``is_listed``: all of them have been listed once, so a pod that is not here is deleted.
    """

    def __init__(self) -> None:
        self._pods: dict[str, NodePod] = {}
        self._listeners: list[asyncio.Event] = []
        self.is_listed = False

    def __iter__(self) -> Iterator[NodePod]:
        return iter(self._pods.values())

    def subscribe(self) -> asyncio.Event:
        """Return an event of the caller's own that is set at each change."""
        self._listeners.append(asyncio.Event())
        return self._listeners[-1]

    def by_uid(self, uid: str) -> NodePod | None:
        return self._pods.get(uid)

    def replaced(self, items: list[Pod]) -> None:
        self._pods = {pod.uid: self._as_decided(pod) for pod in items}
        self.is_listed = True
        self._notify()

    def changed(self, item: Pod) -> None:
        self._pods[item.uid] = self._as_decided(item)
        self._notify()

    def deleted(self, item: Pod) -> None:
        self._pods.pop(item.uid, None)
        self._notify()

    def _notify(self) -> None:
        for listener in self._listeners:
            listener.set()

    def _as_decided(self, pod: Pod) -> NodePod:
        before = self._pods.get(pod.uid)
        kept = keep_decision(before, pod) if before is not None else None
        if kept is not None:
            log.warning("decision changed on a bound pod, ignored", extra={"pod": pod.key})
        return NodePod.of(kept or pod)
