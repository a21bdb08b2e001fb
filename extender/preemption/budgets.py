"""Knows PodDisruptionBudgets: how many pods each lets go, and which pods it selects."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Collection, Iterator
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
    """Without knowing the PodDisruptionBudgets no pod may be chosen for eviction."""


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

    async def of_pods_in(self, namespaces: Collection[str]) -> Budgets:
        """Return the budgets of these namespaces. Raise BudgetsUnknown if they cannot be read."""
        if not self.known.is_set():
            raise BudgetsUnknown("PodDisruptionBudgets are not listed yet")
        here = [each for each in self._budgets.values() if each.metadata.namespace in namespaces]
        if len(here) > MOST_LISTED:
            raise BudgetsUnknown(
                f"{len(here)} PodDisruptionBudgets: at most {MOST_LISTED} are read"
            )
        found = await asyncio.gather(*map(self._pods_of, here))
        of: dict[str, list[str]] = defaultdict(list)
        for budget, uids in zip(here, found, strict=True):
            for uid in uids:
                of[uid].append(budget.key)
        # As they are now: other pods may have been evicted meanwhile.
        now = [self._budgets.get(budget.key, budget) for budget in here]
        return Budgets(
            {uid: tuple(keys) for uid, keys in of.items()}, {each.key: each.allowed for each in now}
        )

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
