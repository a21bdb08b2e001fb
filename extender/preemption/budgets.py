"""Knows PodDisruptionBudgets: how many pods each lets go, and which pods it guards."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
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
from gpushare.objects.disruption_budget import UNGUARDED, DisruptionBudget, guards_of
from gpushare.preemption.model import Budgets
from gpushare.process.time_slices import in_slices

log = logging.getLogger(__name__)

AGAIN_SECONDS: Final = 10.0  # after which the pods of a budget are listed again
AT_ONCE: Final = 4
MOST_LISTED: Final = 200  # budgets of one namespace whose pods are listed
PODS_A_STEP: Final = 256
_FINAL: Final = (HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND)


class _Meta(msgspec.Struct):
    uid: str = ""


class _Condition(msgspec.Struct):
    type: str = ""
    status: str = ""


class _Status(msgspec.Struct):
    phase: str | None = None
    conditions: tuple[_Condition, ...] | None = None


class _Pod(msgspec.Struct):
    metadata: _Meta
    status: _Status = msgspec.field(default_factory=_Status)

    @property
    def is_ready(self) -> bool:
        found = self.status.conditions or ()
        return any(each.type == "Ready" and each.status == "True" for each in found)


@dataclass(frozen=True, slots=True)
class _Selected:
    """The pods that a selector found at a time; ``ready`` has whether each was, by uid."""

    selector: str
    at: float
    ready: Mapping[str, bool]


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
        self._pods: dict[str, _Selected] = {}  # by key of the budget
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

    def guarded(self, namespaces: Collection[str]) -> frozenset[str]:
        """Return which of the namespaces have a budget; all of them while budgets are unknown."""
        if not self.known.is_set():
            return frozenset(namespaces)
        return frozenset(namespaces) & {each.metadata.namespace for each in self._budgets.values()}

    async def of_pods_in(self, namespaces: Collection[str]) -> tuple[Budgets, frozenset[str]]:
        """Return the budgets of these namespaces, and those of which they cannot be read.

        No pod there may be chosen for eviction. Nothing is listed where there is no budget.
        """
        here: dict[str, list[DisruptionBudget]] = {name: [] for name in self.guarded(namespaces)}
        for each in self._budgets.values():
            if each.metadata.namespace in here:
                here[each.metadata.namespace].append(each)
        now = self._clock.monotonic()
        self._pods = {key: old for key, old in self._pods.items() if now - old.at < AGAIN_SECONDS}
        found = await asyncio.gather(*map(self._pods_of_all, here.values()), return_exceptions=True)
        unknown, budgets = set[str](), list[tuple[DisruptionBudget, _Selected]]()
        for name, some in zip(here, found, strict=True):
            if isinstance(some, BudgetsUnknown):
                log.warning("budgets unknown", extra={"namespace": name, "why": str(some)})
                unknown.add(name)
            elif isinstance(some, BaseException):
                raise some
            else:
                budgets += zip(here[name], some, strict=True)
        of: dict[str, tuple[str, ...]] = {}
        allowed: dict[str, int] = {}
        await in_slices(self._read(budgets, of, allowed))
        return Budgets(of, allowed), frozenset(unknown)

    async def _pods_of_all(self, budgets: Sequence[DisruptionBudget]) -> list[_Selected]:
        if not self.known.is_set() or len(budgets) > MOST_LISTED:
            raise BudgetsUnknown(f"{len(budgets)} are known: at most {MOST_LISTED} are read")
        return await asyncio.gather(*map(self._pods_of, budgets))

    def _read(
        self,
        budgets: Sequence[tuple[DisruptionBudget, _Selected]],
        of: dict[str, tuple[str, ...]],
        allowed: dict[str, int],
    ) -> Iterator[None]:
        """Note which budgets guard which pods, as the budgets are now.

        Other pods may have been evicted while the pods were listed.
        """
        selecting: dict[str, list[DisruptionBudget]] = defaultdict(list)
        ready: dict[str, bool] = {}
        for before, selected in budgets:
            budget = self._budgets.get(before.key, before)
            allowed[budget.key] = budget.allowed
            for uid in selected.ready:
                selecting[uid].append(budget)
            ready |= selected.ready
            yield
        for number, (uid, some) in enumerate(selecting.items()):
            if guards := guards_of(some, is_ready=ready[uid]):
                of[uid] = guards
            if number % PODS_A_STEP == 0:
                yield

    def replaced(self, items: list[DisruptionBudget]) -> None:
        self._budgets = {each.key: each for each in items}
        self.known.set()
        self.version += 1

    def changed(self, budget: DisruptionBudget) -> None:
        self._budgets[budget.key] = budget
        self.version += 1

    def deleted(self, budget: DisruptionBudget) -> None:
        self._budgets.pop(budget.key, None)
        self._pods.pop(budget.key, None)
        self.version += 1

    async def _pods_of(self, budget: DisruptionBudget) -> _Selected:
        selector, now = budget.selector, self._clock.monotonic()
        if selector is None:
            return _Selected("", now, {})
        before = self._pods.get(budget.key)
        if before is not None and before.selector == selector:
            return before
        listed = paths.pods(
            namespace=budget.metadata.namespace,
            label_selector=selector,
            field_selector="spec.nodeName!=",
        )
        found: dict[str, bool] = {}

        def read(items: list[msgspec.Raw]) -> Iterator[None]:
            for raw in items:
                pod = _decode_pod(raw)
                if pod.status.phase != UNGUARDED:
                    found[pod.metadata.uid] = pod.is_ready
                yield

        try:
            async with self._places, aclosing(pages(self._kube, listed)) as pages_found:
                async for page in pages_found:
                    await in_slices(read(page.items or []))
        except (ApiError, *UNDECODABLE) as err:
            raise BudgetsUnknown(f"pods of budget {budget.key} cannot be listed: {err}") from err
        self._pods[budget.key] = _Selected(selector, now, found)
        return self._pods[budget.key]
