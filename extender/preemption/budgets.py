"""Knows PodDisruptionBudgets: how many pods each lets go, and which pods it selects."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from contextlib import aclosing
from http import HTTPStatus
from typing import Final

import msgspec

from gpushare.clock import Clock
from gpushare.errors import UNDECODABLE, ApiError
from gpushare.kube import paths
from gpushare.kube.backoff import Backoff
from gpushare.kube.client import Kube
from gpushare.kube.informer import Informer
from gpushare.kube.lists import pages
from gpushare.objects.disruption_budget import DisruptionBudget
from gpushare.preemption.model import Budgets
from gpushare.process.time_slices import in_slices

log = logging.getLogger(__name__)

AGAIN_SECONDS: Final = 10.0  # after which the pods of a budget are listed again
AT_ONCE: Final = 4
MOST_LISTED: Final = 200  # budgets whose pods are listed for one plan
_FINAL: Final = (HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND)


class _Meta(msgspec.Struct):
    uid: str = ""


class _Pod(msgspec.Struct):
    metadata: _Meta


_decode_pod: Final = msgspec.json.Decoder(_Pod).decode


class BudgetsUnknown(ApiError):
    """The pods of a budget cannot be listed."""


class BudgetWatch:
    """Watches all budgets, and lists their pods where a plan needs them.

    The watch of pods does not keep the labels by which budgets select them: the API server does.
    """

    def __init__(self, kube: Kube, clock: Clock) -> None:
        self._kube, self._clock = kube, clock
        self._budgets: dict[str, DisruptionBudget] = {}
        self._pods: dict[str, tuple[str, float, frozenset[str]]] = {}  # selector, when, uids
        self._places = asyncio.Semaphore(AT_ONCE)
        self.known = asyncio.Event()
        self.version = 0

    async def run(self) -> None:
        """Watch until cancelled; without the right to do so try again after a while."""
        backoff = Backoff(5.0, 60.0)
        while True:
            informer = Informer(
                self._kube, paths.disruption_budgets(), DisruptionBudget, self, final=_FINAL
            )
            try:
                await informer.run()
            except ApiError as err:
                self.known.clear()
                log.warning("no pod is preempted: budgets are unknown", extra={"why": str(err)})
            await asyncio.sleep(backoff.next())

    async def of_pods_in(self, namespaces: Collection[str]) -> tuple[Budgets, frozenset[str]]:
        """Return the budgets of these namespaces, and those of which they cannot be read.

        No pod there may be chosen for eviction.
        """
        of: dict[str, list[str]] = defaultdict(list)
        allowed: dict[str, int] = {}
        unknown = set[str]()
        for namespace in sorted(namespaces):
            here = [each for each in self._budgets.values() if each.metadata.namespace == namespace]
            try:
                found = await self._pods_of_all(here)
            except BudgetsUnknown as err:
                log.warning("budgets unknown", extra={"namespace": namespace, "why": str(err)})
                unknown.add(namespace)
                continue
            for budget, uids in zip(here, found, strict=True):
                # As it is now: other pods may have been evicted meanwhile.
                allowed[budget.key] = self._budgets.get(budget.key, budget).allowed
                for uid in uids:
                    of[uid].append(budget.key)
        budgets = Budgets({uid: tuple(keys) for uid, keys in of.items()}, allowed)
        return budgets, frozenset(unknown)

    async def _pods_of_all(self, budgets: Sequence[DisruptionBudget]) -> list[frozenset[str]]:
        if not self.known.is_set() or len(budgets) > MOST_LISTED:
            raise BudgetsUnknown(f"{len(budgets)} are known: at most {MOST_LISTED} are read")
        return await asyncio.gather(*map(self._pods_of, budgets))

    def replaced(self, items: list[DisruptionBudget]) -> None:
        self._budgets = {each.key: each for each in items}
        self._pods = {key: found for key, found in self._pods.items() if key in self._budgets}
        self.known.set()
        self.version += 1

    def changed(self, budget: DisruptionBudget) -> None:
        self._budgets[budget.key] = budget
        self.version += 1

    def deleted(self, budget: DisruptionBudget) -> None:
        self._budgets.pop(budget.key, None)
        self._pods.pop(budget.key, None)
        self.version += 1

    async def _pods_of(self, budget: DisruptionBudget) -> frozenset[str]:
        selector, now = budget.selector, self._clock.monotonic()
        if selector is None:
            return frozenset()
        before, at, uids = self._pods.get(budget.key, ("", float("-inf"), frozenset[str]()))
        if before == selector and now - at < AGAIN_SECONDS:
            return uids
        listed = paths.pods(
            namespace=budget.metadata.namespace,
            label_selector=selector,
            field_selector="spec.nodeName!=",
        )
        found: set[str] = set()

        def read(items: list[msgspec.Raw]) -> Iterator[None]:
            for raw in items:
                found.add(_decode_pod(raw).metadata.uid)
                yield

        try:
            async with self._places, aclosing(pages(self._kube, listed)) as pages_found:
                async for page in pages_found:
                    await in_slices(read(page.items or []))
        except (ApiError, *UNDECODABLE) as err:
            raise BudgetsUnknown(f"pods of budget {budget.key} cannot be listed: {err}") from err
        uids = frozenset(found)
        self._pods[budget.key] = selector, now, uids
        return uids
