"""Creates placeholders for pods that need a new node, and deletes them as soon as they do not."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol

from extender.decisions.autoscaling.body import body
from extender.decisions.autoscaling.missing_nodes import MissingNodes
from extender.decisions.autoscaling.placeholders import Placeholder
from extender.decisions.cluster_state import ClusterState
from extender.watch.events import Notice
from gpushare.contract import LABEL_PLACEHOLDER
from gpushare.errors import ApiError, Conflict, NotFound
from gpushare.kube.backoff import Retries
from gpushare.objects.model import Pod
from gpushare.process.time_slices import Turns, rest

log = logging.getLogger(__name__)

EVERY_SECONDS: Final = 0.3  # Karpenter waits for a second before it looks at new pods
MOST_REST_SECONDS: Final = 5.0


class PodWriter(Protocol):
    """The part of ``Writer`` that this needs."""

    async def create_pod(self, namespace: str, body: Mapping[str, Any], /) -> None: ...

    async def delete_pod(self, pod: Pod, /) -> None: ...


class Placeholders:
    """``is_on``: otherwise those that a former leader has created are deleted, and no more.

    All are in gpushare's own namespace.
    """

    def __init__(
        self,
        state: ClusterState,
        slices: Turns,
        writer: PodWriter,
        notice: Notice,
        *,
        is_on: bool,
    ) -> None:
        self._state, self._slices, self._writer = state, slices, writer
        self._notice, self._is_on = notice, is_on
        self._missing = MissingNodes(state)
        self._retries: Retries[str] = Retries(state.clock)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._repeat(self.check))
            tasks.create_task(self._repeat(self.drop))

    async def drop(self) -> None:
        """Delete those whose pods have got room: an autoscaler may look at any moment."""
        gone = [each for each in self._known().items() if not self._missing.waits(each[0])]
        await asyncio.gather(*(self._delete(*each) for each in gone))

    async def let_go(self, pod: Pod) -> None:
        """Delete the placeholder of a pod that is about to be bound; failures are logged.

        Autoscalers watch both as pods, in the order of the writes. So none looks between the two
        and adds a node for a placeholder that has no room beside its own pod.
        """
        placeholder = self._known().get(pod.uid)
        if placeholder is not None:
            await self._delete(pod.uid, placeholder)

    async def check(self) -> None:
        """Create and delete what differs from what should exist; a large cluster takes long."""
        known = self._known()
        wanted = {each.pod.uid: each for each in await self._wanted(known)}
        self._retries.keep_only({*known, *wanted, *(pod.uid for pod in known.values())})
        await asyncio.gather(
            *(self._delete(uid, known[uid]) for uid in known.keys() - wanted),
            *(self._create(wanted[uid]) for uid in wanted.keys() - known),
        )

    async def _wanted(self, known: Mapping[str, Pod]) -> tuple[Placeholder, ...]:
        return await self._slices.run(self._missing.find(known)) if self._is_on else ()

    async def _repeat(self, duty: Callable[[], Awaitable[None]]) -> None:
        while True:
            before = self._slices.spent
            await duty()
            used = self._slices.spent - before
            await rest(used, least=EVERY_SECONDS, most=MOST_REST_SECONDS)

    def _known(self) -> dict[str, Pod]:
        """Return those that exist by the uids of their pods."""
        return {
            pod.labels[LABEL_PLACEHOLDER]: pod
            for pod in self._state.placeholders.values()
            if not pod.metadata.deletion_timestamp
        }

    async def _create(self, wanted: Placeholder) -> None:
        pod, uid, namespace = wanted.pod, wanted.pod.uid, self._state.own_namespace
        if not self._retries.is_ready(uid):
            return
        try:
            await self._writer.create_pod(namespace, body(wanted, namespace))
        except Conflict:
            self._retries.tried(uid, landed=False)  # the watch shows it soon
            return
        except ApiError as err:
            self._retries.tried(uid, landed=False)
            log.warning("placeholder not created", extra={"pod": pod.key, "why": str(err)})
            return
        self._retries.tried(uid, landed=False)  # not again before the watch shows it
        log.info("placeholder created", extra={"pod": pod.key, "like": wanted.like.name})
        text = (
            f"no GPU has room, although the sum of a node has: a placeholder in {namespace} "
            f"asks autoscalers for a node like {wanted.like.name}"
        )
        self._notice(pod, "GpushareNodeMissing", text)

    async def _delete(self, uid: str, placeholder: Pod) -> None:
        if not self._retries.is_ready(placeholder.uid):
            return
        try:
            await self._writer.delete_pod(placeholder)
        except NotFound:
            return
        except ApiError as err:
            self._retries.tried(placeholder.uid, landed=False)
            log.warning("placeholder not deleted", extra={"for": uid, "why": str(err)})
            return
        log.info("placeholder deleted", extra={"for": uid})
