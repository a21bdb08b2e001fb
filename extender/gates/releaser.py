"""Releases gated pods: several patches at a time, each until its outcome is known."""

import asyncio
import logging
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from typing import Any, Final, Protocol

from extender.metrics.counters import RELEASES
from gpushare.errors import ApiError, NotFound, Replaced
from gpushare.kube.backoff import Backoff
from gpushare.objects.model import Pod

log = logging.getLogger(__name__)

AT_ONCE: Final = 16
ATTEMPTS: Final = 3  # of one patch
_POLICY: Final = "ValidatingAdmissionPolicy"  # in the API server's text of a rejection


class Outcome(StrEnum):
    """What became of a patch."""

    RELEASED = "released"
    GONE = "gone"
    """The pod is deleted, or another pod has its name."""
    CONFLICT = "conflict"
    """The pod contradicts the patch: it is bound, or somebody else restricted its nodes."""
    REFUSED = "refused"
    """The API server does not permit the patch: a right is missing, or a policy rejects it."""
    UNKNOWN = "unknown"
    """The patch was not sent, or nobody knows what became of it. It can be sent again."""


for _outcome in Outcome:
    RELEASES.labels(_outcome)


@dataclass(frozen=True, slots=True)
class Release:
    """A pod, and the patch that releases it (``patch.release_patch``).

    ``nomination`` is the patch of its status that comes first, if it has a slot.
    """

    pod: Pod
    patch: Mapping[str, Any]
    nomination: Mapping[str, Any] | None = None


class PodPatcher(Protocol):
    """The part of ``Writer`` that this needs."""

    async def release_pod(self, pod: Pod, patch: Mapping[str, Any], /) -> None: ...

    async def nominate_node(self, pod: Pod, patch: Mapping[str, Any], /) -> None: ...


class Releaser:
    """Sends AT_ONCE patches at a time, whoever asks for them."""

    def __init__(self, writer: PodPatcher) -> None:
        self._writer = writer
        self._places = asyncio.Semaphore(AT_ONCE)

    async def release_all(self, releases: Iterable[Release]) -> dict[str, Outcome]:
        """Release these pods, and return the outcomes by uid."""
        wanted = list(releases)
        outcomes = await asyncio.gather(*map(self.release, wanted))
        return {each.pod.uid: found for each, found in zip(wanted, outcomes, strict=True)}

    async def release(self, release: Release) -> Outcome:
        """Release one pod, and count the outcome.

        It is released also without a nominated node: kube-scheduler then tries all nodes.
        """
        if release.nomination is not None:
            await self.nominate(release.pod, release.nomination)
        outcome = await self.patch(release)
        RELEASES.labels(outcome).inc()
        return outcome

    async def patch(self, release: Release) -> Outcome:
        """Send a patch; one with an unknown outcome is sent again, ATTEMPTS times in all.

        The patch may be repeated: it changes nothing that it has changed already.
        """
        backoff = Backoff(0.1, 1.0)
        async with self._places:
            outcome = await self._try(release)
            for _ in range(ATTEMPTS - 1):
                if outcome is not Outcome.UNKNOWN:
                    break
                await asyncio.sleep(backoff.next())
                outcome = await self._try(release)
            return outcome

    async def nominate(self, pod: Pod, patch: Mapping[str, Any]) -> Outcome:
        """Send a patch of a pod's nominated node, once."""
        async with self._places:
            write = self._writer.nominate_node(pod, patch)
            return await _written(pod, "nominated node not changed", write)

    async def _try(self, release: Release) -> Outcome:
        pod = release.pod
        return await _written(pod, "pod not patched", self._writer.release_pod(pod, release.patch))


async def _written(pod: Pod, failure: str, write: Awaitable[None]) -> Outcome:
    try:
        await write
    except ApiError as err:
        outcome = outcome_of(err)
        if outcome is not Outcome.GONE:
            about = {"pod": pod.key, "uid": pod.uid, "outcome": str(outcome)}
            log.warning(failure, extra={**about, "why": str(err)})
        return outcome
    return Outcome.RELEASED


def outcome_of(err: ApiError) -> Outcome:
    """Return what a failed patch means.

    The API server answers 422 if the change is not permitted for this pod, and if a policy rejects
    it; 409 if the pod is written by others all the time.
    """
    if isinstance(err, NotFound | Replaced):
        return Outcome.GONE
    if err.code == HTTPStatus.FORBIDDEN or _POLICY in str(err):
        return Outcome.REFUSED
    if err.code == HTTPStatus.UNPROCESSABLE_ENTITY:
        return Outcome.CONFLICT
    return Outcome.UNKNOWN
