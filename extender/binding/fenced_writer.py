"""All writes of the extender: none begins that might end after the lease."""

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from typing import Any, Final

from extender.binding.timing import SIDE_SECONDS, WRITE_SECONDS
from extender.binding.write_journal import WriteJournal
from extender.metrics.counters import WRITES_HELD_BACK
from gpushare.clock import Clock
from gpushare.errors import NotLeading, OutcomeUnknown
from gpushare.kube.client import Kube
from gpushare.objects.model import Pod

log = logging.getLogger(__name__)

_EVENT: Final = "event"


class Writer:
    """Reads and writes like ``Kube``, but raises NotLeading instead of writing too late.

    ``ends_at``: when, by ``clock``, every write of this process must have ended. It is called when
    a write begins and never cached: the process may have slept since. ``journal`` notes all writes
    except Events, which change nothing that is decided by.
    """

    def __init__(
        self,
        kube: Kube,
        clock: Clock,
        ends_at: Callable[[], float],
        journal: WriteJournal | None = None,
    ) -> None:
        self._kube, self._clock, self._ends_at, self._journal = kube, clock, ends_at, journal
        self._under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._may_land_until = -math.inf

    async def get_pod(self, namespace: str, name: str) -> Pod:
        """Read consistently, whichever replica leads."""
        return await self._kube.get_pod(namespace, name)

    async def bind_pod(
        self, pod: Pod, node: str, annotations: Mapping[str, str], *, seconds: float
    ) -> None:
        what = f"binding of {pod.key}"
        async with self._write(seconds, what, pod, node):
            # Before the first byte there are tasks and handshakes, and the process may sleep.
            await self._kube.bind_pod(
                pod,
                node,
                annotations,
                seconds=seconds,
                may_go=lambda: self._check(seconds, what),
            )

    async def release_pod(self, pod: Pod, patch: Mapping[str, Any]) -> None:
        """Apply the patch that removes our scheduling gate from exactly this uid."""
        await self._patch(pod, patch, f"release of {pod.key}")

    async def nominate_node(self, pod: Pod, patch: Mapping[str, Any]) -> None:
        """Apply the patch that changes the nominated node in the status of exactly this uid."""
        await self._patch(pod, patch, f"nominated node of {pod.key}", part="status")

    async def _patch(
        self, pod: Pod, patch: Mapping[str, Any], what: str, *, part: str = ""
    ) -> None:
        async with self._write(WRITE_SECONDS, what):
            await self._kube.patch_pod(
                pod.metadata.namespace,
                pod.metadata.name,
                patch,
                part=part,
                seconds=WRITE_SECONDS,
                may_go=lambda: self._check(WRITE_SECONDS, what),
            )

    async def evict_pod(
        self, pod: Pod, *, any_version: bool = False, grace_seconds: int | None = None
    ) -> None:
        async with self._write(SIDE_SECONDS, f"eviction of {pod.key}"):
            await self._kube.evict_pod(
                pod, any_version=any_version, grace_seconds=grace_seconds, seconds=SIDE_SECONDS
            )

    async def try_eviction(self, pod: Pod) -> None:
        """Ask whether the pod could be evicted now; nothing is written. Raises as ``evict_pod``."""
        await self._kube.evict_pod(pod, any_version=True, is_trial=True, seconds=SIDE_SECONDS)

    async def create_pod(self, namespace: str, body: Mapping[str, Any]) -> None:
        async with self._write(SIDE_SECONDS, "creation of a pod"):
            await self._kube.create_pod(namespace, body, seconds=SIDE_SECONDS)

    async def delete_pod(self, pod: Pod) -> None:
        """Delete exactly this uid at once; it runs nowhere."""
        async with self._write(SIDE_SECONDS, f"deletion of {pod.key}"):
            await self._kube.delete_pod(pod, seconds=SIDE_SECONDS)

    async def create_event(self, namespace: str, event: Mapping[str, Any]) -> None:
        async with self._write(SIDE_SECONDS, _EVENT):
            await self._kube.create_event(namespace, event, seconds=SIDE_SECONDS)

    async def quiet(self) -> None:
        """Return once no write is under way and none may land any more.

        Call it when no new write can begin: without a lease, or just before releasing it.
        """
        await self._idle.wait()
        await asyncio.sleep(max(0.0, self._may_land_until - self._clock.monotonic()))

    def _check(self, seconds: float, what: str) -> float:
        """Return the time; raise NotLeading if it is too late to begin a write."""
        now = self._clock.monotonic()
        if now + seconds > self._ends_at():
            WRITES_HELD_BACK.inc()
            raise NotLeading(
                f"{what} was not begun: it may take {seconds:g} s, and this replica's lease ends "
                "before that"
            )
        return now

    @asynccontextmanager
    async def _write(
        self, seconds: float, what: str, bound: Pod | None = None, node: str = ""
    ) -> AsyncIterator[None]:
        begun = self._check(seconds, what)
        noted: AbstractContextManager[None] = nullcontext()
        if self._journal is not None and what != _EVENT:
            noted = self._journal.noted(what, seconds, bound, node)
        self._under_way += 1
        self._idle.clear()
        try:
            with noted:
                yield
        except (OutcomeUnknown, asyncio.CancelledError):
            self._may_land_until = max(self._may_land_until, begun + seconds)
            raise
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()
            if (late := self._clock.monotonic() - begun - seconds) > 1:
                # The process slept during the write: what it sent on waking may have come too late.
                log.warning("a write took longer than it may", extra={"what": what, "late": late})
