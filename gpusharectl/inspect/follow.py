"""Nodes and pods as the API server lists them to this user, once or at each change."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from gpushare.kube.client import Kube
from gpushare.kube.informer import Informer
from gpushare.kube.paths import nodes, pods
from gpushare.objects.model import Node, Pod
from gpushare.process.lifetime import cancel
from gpusharectl.reach.extender import all_nodes, all_pods
from gpusharectl.reach.rights import Lacking

TOGETHER_SECONDS: Final = 0.3  # changes that come at once are one
POLL_SECONDS: Final = 2.0

T = TypeVar("T", bound=Pod | Node)


@dataclass(frozen=True, slots=True)
class Listed:
    """``complete``: every pod is there. ``missing`` says what could not be listed, and why."""

    nodes: list[Node]
    pods: list[Pod]
    complete: bool = True
    missing: tuple[str, ...] = ()


async def listed(kube: Kube, node: str = "") -> Listed:
    """All nodes and pods, or one node and its pods.

    Where no others may be listed, the pods of one's own namespace, and no nodes. Lacking where
    nothing may be listed.
    """
    missing: list[str] = []
    found: list[Node] = []
    refusal: Lacking | None = None
    try:
        found = await all_nodes(kube, node)
    except Lacking as err:
        refusal = err
        missing.append(f"GPUs and what is free on them are not shown: {err}")
    try:
        every = await all_pods(kube, node=node)
        return Listed(found, every, refusal is None, tuple(missing))
    except Lacking as err:
        try:
            mine = await all_pods(kube, kube.namespace, node=node)
        except Lacking as own:
            if refusal is not None:
                raise refusal from own
            missing.append(f"pods are not shown: {err}")
            mine = []
        else:
            missing.append(f"pods of other namespaces than {kube.namespace} are not shown: {err}")
        return Listed(found, mine, complete=False, missing=tuple(missing))


async def changes(kube: Kube, node: str = "") -> AsyncGenerator[Listed, None]:
    """The same at once, and again whenever something has changed; without end.

    Watched where that is allowed, else listed every POLL_SECONDS.
    """
    first = await listed(kube, node)
    yield first
    if first.complete:
        async with _watched(kube, node) as (them, theirs, changed):
            while not (them.is_refused or theirs.is_refused):
                await changed.wait()
                await asyncio.sleep(TOGETHER_SECONDS)
                changed.clear()
                if them.is_known and theirs.is_known:
                    yield Listed(list(them.items.values()), list(theirs.items.values()))
    while True:
        await asyncio.sleep(POLL_SECONDS)
        yield await listed(kube, node)


class _Kept(Generic[T]):
    """What an informer tells, by uid."""

    def __init__(self, changed: asyncio.Event) -> None:
        self.items: dict[str, T] = {}
        self.is_known = False
        self.is_refused = False
        self._changed = changed

    def replaced(self, items: list[T]) -> None:
        self.items = {item.metadata.uid: item for item in items}
        self.is_known = True
        self._changed.set()

    def changed(self, item: T) -> None:
        self.items[item.metadata.uid] = item
        self._changed.set()

    def deleted(self, item: T) -> None:
        self.items.pop(item.metadata.uid, None)
        self._changed.set()


@asynccontextmanager
async def _watched(
    kube: Kube, node: str
) -> AsyncIterator[tuple[_Kept[Node], _Kept[Pod], asyncio.Event]]:
    logging.getLogger("gpushare").addHandler(logging.NullHandler())  # the terminal is ours
    changed = asyncio.Event()
    them, theirs = _Kept[Node](changed), _Kept[Pod](changed)
    of_nodes = Informer(
        kube, nodes(field_selector=f"metadata.name={node}" if node else ""), Node, them
    )
    of_pods = Informer(
        kube, pods(field_selector=f"spec.nodeName={node}" if node else ""), Pod, theirs
    )

    async def look_for_refusals() -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            for informer, kept in ((of_nodes, them), (of_pods, theirs)):
                if informer.restarts["refused"]:
                    kept.is_refused = True
                    changed.set()

    running = (of_nodes.run(), of_pods.run(), look_for_refusals())
    tasks = [asyncio.create_task(each) for each in running]
    try:
        yield them, theirs, changed
    finally:
        await cancel(tasks)
