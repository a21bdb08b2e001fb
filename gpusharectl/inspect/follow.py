"""List nodes and pods with the user's rights, once or after each change."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, Generic, TypeVar

from gpushare.kube.client import Kube
from gpushare.kube.informer import Informer
from gpushare.kube.paths import nodes, pods
from gpushare.objects.model import Node, Pod
from gpushare.process.lifetime import cancel
from gpusharectl.inspect.summary import Listed, Scope
from gpusharectl.reach.extender import all_nodes, all_pods
from gpusharectl.reach.pod_events import Said, sentences
from gpusharectl.reach.rights import Lacking

TOGETHER_SECONDS: Final = 0.3  # changes within this time are one
POLL_SECONDS: Final = 2.0

T = TypeVar("T", bound=Pod | Node)


async def listed(kube: Kube, scope: Scope = Scope()) -> Listed:  # noqa: B008 - immutable
    """List all nodes and pods, or one node and its pods.

    Without the right to list all pods, list those of the namespace asked for, else of the user's.
    Of all nodes and pods, what is not shown is then left to the caller. Lacking if nothing may be
    listed.
    """
    missing: list[str] = []
    found: list[Node] | None = None
    refusal: Lacking | None = None
    try:
        found = await all_nodes(kube, scope.node)
    except Lacking as err:
        refusal = err
        missing.append(f"GPUs, what is free on them and sums are not shown: {err}")
    try:
        every = await all_pods(kube, node=scope.node)
        return Listed(found, every, missing=tuple(missing))
    except Lacking as err:
        own = scope.namespace or kube.namespace
        try:
            mine = await all_pods(kube, own, node=scope.node)
        except Lacking as none:
            if refusal is not None:
                raise refusal from none
            missing.append(f"pods and sums are not shown: {none if scope.namespace else err}")
            return Listed(found, None, missing=tuple(missing))
        if refusal is not None and not scope.node:
            missing = []  # to this user a list of missing rights says nothing
        else:
            what = f"pods outside namespace {own} and sums"
            if scope.namespace:
                what = "pods of other namespaces"
            missing.append(f"{what} are not shown: {err}")
        said: dict[str, Said] = {}
        if not all(pod.node for pod in mine):
            try:
                said = await sentences(kube, own)
            except Lacking as lacks:
                missing.append(f"reasons in Events are not shown: {lacks}")
        return Listed(found, mine, own, tuple(missing), said)


async def changes(kube: Kube, scope: Scope = Scope()) -> AsyncGenerator[Listed, None]:  # noqa: B008
    """List at once, and again after each change, without end.

    Watches if the user may, else lists every POLL_SECONDS.
    """
    first = await listed(kube, scope)
    yield first
    if first.complete:
        async with _watched(kube, scope.node) as (node_store, pod_store, changed):
            while not (node_store.is_refused or pod_store.is_refused):
                await changed.wait()
                await asyncio.sleep(TOGETHER_SECONDS)
                changed.clear()
                if node_store.is_known and pod_store.is_known:
                    yield Listed(list(node_store.items.values()), list(pod_store.items.values()))
    while True:
        await asyncio.sleep(POLL_SECONDS)
        yield await listed(kube, scope)


class _Kept(Generic[T]):
    """The objects of an informer, by uid."""

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
    logging.getLogger("gpushare").addHandler(logging.NullHandler())  # the terminal shows the view
    changed = asyncio.Event()
    node_store, pod_store = _Kept[Node](changed), _Kept[Pod](changed)
    selected = (f"metadata.name={node}", f"spec.nodeName={node}") if node else ("", "")
    of_nodes = Informer(kube, nodes(field_selector=selected[0]), Node, node_store)
    of_pods = Informer(kube, pods(field_selector=selected[1]), Pod, pod_store)

    async def look_for_refusals() -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            for informer, kept in ((of_nodes, node_store), (of_pods, pod_store)):
                if informer.restarts["refused"]:
                    kept.is_refused = True
                    changed.set()

    running = (of_nodes.run(), of_pods.run(), look_for_refusals())
    tasks = [asyncio.create_task(each) for each in running]
    try:
        yield node_store, pod_store, changed
    finally:
        await cancel(tasks)
