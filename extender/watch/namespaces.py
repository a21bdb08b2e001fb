"""Watches namespaces: which of them are queued, and the quota of each.

While they cannot be read, what was read last holds: kube-apiserver also answers 403 right after its
start, before it knows the roles. A replica that has never read them limits nothing once several
refusals show that the right is missing: otherwise it would place nothing.
"""

import asyncio
import logging
from collections.abc import Iterator
from http import HTTPStatus
from typing import Final

from gpushare.errors import ApiError
from gpushare.kube import paths
from gpushare.kube.client import Kube
from gpushare.kube.informer import Informer
from gpushare.quota.namespaces import NamespaceObject, Namespaces, namespace_of

log = logging.getLogger(__name__)

REFUSALS: Final = 4  # one after the other, until the right counts as missing
SOON_SECONDS: Final = 2.0  # between these
AGAIN_SECONDS: Final = 60.0  # until it is found out whether they may be read by now
_FINAL: Final = (HTTPStatus.FORBIDDEN,)


class NamespaceWatch:
    """``known`` is set once they were listed, or the API server has said that they may not be."""

    def __init__(self, kube: Kube, namespaces: Namespaces) -> None:
        self._kube, self._namespaces = kube, namespaces
        self._refusals = 0
        self._informer: Informer[NamespaceObject] | None = None
        self.known = asyncio.Event()

    async def run(self) -> None:
        """Watch until cancelled; look again now and then while the right is missing."""
        while True:
            self._informer = informer = Informer(
                self._kube, paths.namespaces(), NamespaceObject, self, final=_FINAL
            )
            try:
                await informer.run()
            except ApiError as err:
                self._refusals += 1
                if self._refusals >= REFUSALS:
                    self._give_up(str(err))
            await asyncio.sleep(AGAIN_SECONDS if self._refusals >= REFUSALS else SOON_SECONDS)

    async def relist(self) -> None:
        """Return when all earlier writes count, and at once if namespaces may not be read."""
        if self._informer is not None:
            await self._informer.relist()

    def _give_up(self, why: str) -> None:
        if not self._namespaces.why_unknown:
            holds = "what they said last holds" if self.known.is_set() else "no quota is enforced"
            log.warning(
                "namespaces cannot be read: let the extender list and watch them",
                extra={"why": why, "until_then": holds},
            )
        self._namespaces.why_unknown = why
        self.known.set()

    def replaced(self, items: list[NamespaceObject]) -> Iterator[None]:
        listed = set()
        for item in items:
            listed.add(item.metadata.name)
            self.changed(item)
            yield
        self._namespaces.keep_only(listed)
        self._refusals = 0
        self.known.set()

    def deleted(self, item: NamespaceObject) -> None:
        self._namespaces.drop(item.metadata.name)

    def changed(self, item: NamespaceObject) -> None:
        found = namespace_of(item)
        if found.problem and found != self._namespaces.get(found.name):
            log.warning(
                "no pod of a namespace is placed: its quota cannot be read",
                extra={"namespace": found.name, "why": found.problem},
            )
        self._namespaces.put(found)
