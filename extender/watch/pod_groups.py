"""Watches PodGroups where the API server serves them, and says why where it does not.

Coscheduling's PodGroup is a custom resource, and that of Kubernetes is off by default: both may
come and go while the extender runs. Without them, or without the right to read them, the gangs that
name one wait, and nothing else changes.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import suppress
from http import HTTPStatus
from typing import Final

import msgspec

from gpushare.errors import ApiError, NotFound
from gpushare.groups import reasons
from gpushare.groups.index import Groups
from gpushare.groups.model import Source
from gpushare.groups.pod_groups import (
    API_GROUPS,
    RESOURCE,
    PodGroupObject,
    key_of_object,
    value_of,
)
from gpushare.kube import paths, responses
from gpushare.kube.backoff import Backoff
from gpushare.kube.client import Kube
from gpushare.kube.informer import Informer
from gpushare.process.time_slices import in_slices

log = logging.getLogger(__name__)

EVERY_SECONDS: Final = 60.0  # between two looks whether they are served, and may be read
KNOWN_SECONDS: Final = 5.0  # an answer about what is served, and a list, take milliseconds

_FINAL: Final = (HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND)
_STATES: Final = {
    reasons.NOT_SERVED: "no known version is served",
    reasons.NOT_READABLE: "the extender may not list and watch podgroups; gangs that name one wait",
}


class _Version(msgspec.Struct):
    version: str = ""


class _ApiGroup(msgspec.Struct):
    versions: tuple[_Version, ...] = ()


class _Resource(msgspec.Struct):
    name: str = ""


class _Resources(msgspec.Struct):
    resources: tuple[_Resource, ...] = ()


_decode_group: Final = msgspec.json.Decoder(_ApiGroup).decode
_decode_resources: Final = msgspec.json.Decoder(_Resources).decode


class PodGroupWatch:
    """Keeps the index of gangs informed about the PodGroups of one source.

    ``known`` is set once they were listed, or it was found why they cannot be.
    """

    def __init__(self, kube: Kube, groups: Groups, source: Source) -> None:
        self._kube, self._groups, self._source = kube, groups, source
        self._api_group, self._versions = API_GROUPS[source]
        self._backoff = Backoff(1.0, EVERY_SECONDS)
        self._logged = ""
        self.known = asyncio.Event()

    async def run(self) -> None:
        """Watch PodGroups while they are served; without them look again every EVERY_SECONDS."""
        while True:
            seconds = await self._watch_while_served()
            await asyncio.sleep(seconds)

    async def wait_if_needed(self) -> None:
        """Return once they are known, at once without a gang that names one, and soon in any case.

        A gang that a former leader has begun would otherwise lose its place to others.
        """
        if any(group.key.source is self._source for group in self._groups):
            with suppress(TimeoutError):
                async with asyncio.timeout(KNOWN_SECONDS):
                    await self.known.wait()

    async def _watch_while_served(self) -> float:
        """Return after how many seconds to look again."""
        try:
            version = await self._served_version()
            self._backoff.reset()
            if version:
                return await self._watch(version)
            why = reasons.NOT_SERVED
            await in_slices(self._groups.replaced_pod_groups(self._source, (), why))
        except ApiError as err:
            if err.code != HTTPStatus.FORBIDDEN:
                log.warning("PodGroups cannot be watched, retrying", extra={"why": str(err)})
                return self._backoff.next()
            why = reasons.NOT_READABLE
            self._groups.set_unreadable(self._source, why)
        self.known.set()
        self._log(_STATES[why])
        return EVERY_SECONDS

    async def _watch(self, version: str) -> float:
        """Watch until the API server serves this version no longer."""
        collection = paths.pod_groups(self._api_group, version)
        handler = _Handler(self._groups, self._source, self.known)
        informer = Informer(self._kube, collection, PodGroupObject, handler, final=_FINAL)
        self._log(f"{version} is watched")
        try:
            await informer.run()
        except NotFound:
            if not informer.synced.is_set():
                raise
        return 0.0

    async def _served_version(self) -> str:
        """Return the first version that is served and known; empty without one."""
        try:
            path = paths.resources_path(self._api_group)
            body = await self._kube.request("GET", path)
        except NotFound:
            return ""
        served = {each.version for each in responses.decode(_decode_group, body).versions}
        for version in self._versions:
            if version in served and await self._has_pod_groups(version):
                return version
        return ""

    async def _has_pod_groups(self, version: str) -> bool:
        try:
            path = paths.resources_path(self._api_group, version)
            body = await self._kube.request("GET", path)
        except NotFound:
            return False
        found = responses.decode(_decode_resources, body).resources
        return any(each.name == RESOURCE for each in found)

    def _log(self, state: str) -> None:
        """Log a state when it begins."""
        if state == self._logged:
            return
        self._logged = state
        level = logging.WARNING if state == _STATES[reasons.NOT_READABLE] else logging.INFO
        log.log(level, "PodGroups", extra={"api_group": self._api_group, "state": state})


class _Handler:
    def __init__(self, groups: Groups, source: Source, known: asyncio.Event) -> None:
        self._groups, self._source, self._known = groups, source, known

    def replaced(self, items: list[PodGroupObject]) -> Iterator[None]:
        found = []
        for item in items:
            found.append(value_of(item, self._source))
            yield
        yield from self._groups.replaced_pod_groups(self._source, found)
        self._known.set()

    def changed(self, item: PodGroupObject) -> None:
        self._groups.put_pod_group(value_of(item, self._source))

    def deleted(self, item: PodGroupObject) -> None:
        self._groups.drop_pod_group(key_of_object(item, self._source))
