"""Make the moves of a plan: evict a pod, wait for the one that replaces it, check the rest."""

import asyncio
import time
from collections.abc import Callable, Collection
from http import HTTPStatus
from typing import Final

from gpushare.annotations.pod_annotations import share_of
from gpushare.defragment import check
from gpushare.defragment.model import Move, MovePlan, Place
from gpushare.errors import ApiError, NotFound
from gpushare.kube.client import Kube
from gpushare.objects.model import Pod
from gpushare.process.time_slices import run_all
from gpushare.text.counted import counted
from gpusharectl.defragment.cordons import Cordons
from gpusharectl.defragment.lines import place
from gpusharectl.defragment.rules import where
from gpusharectl.reach.extender import all_pods
from gpusharectl.reach.listed_cluster import ListedCluster
from gpusharectl.reach.polling import poll
from gpusharectl.reach.questions import nodes_and_pods
from gpusharectl.reach.rights import Right, needing
from gpusharectl.terminal.exits import No

RUNS_SECONDS: Final = 600.0  # from an eviction until the next pod runs
BUDGET_SECONDS: Final = 300.0  # that a PodDisruptionBudget may refuse
AGAIN_SECONDS: Final = 5.0


class Moving:
    """``say`` writes a line about what was done."""

    def __init__(self, kube: Kube, plan: MovePlan, say: Callable[[str], None]) -> None:
        self._kube, self._plan, self._say = kube, plan, say
        self._cordons = Cordons(kube)

    async def run(self) -> None:
        """Make all moves. No, with what was done so far, if one of them or the rest fails.

        GPUs are uncordoned in any case; what could not be is said, and is an error as well.
        """
        try:
            await self._try_all()
            for number, move in enumerate(self._plan.moves):
                await self._make(number, move)
        finally:
            left = await self._cordons.end()
            for text in left:
                self._say(f"a GPU is still cordoned: {text}")
        if left:
            raise No("all pods moved, but not all GPUs were uncordoned")

    async def _try_all(self) -> None:
        """Have the API server try each eviction, so that the first one is not in vain."""
        for move in self._plan.moves:
            pod = move.movable.pod
            try:
                await self._evict(pod, is_trial=True)
            except ApiError as err:
                if err.code == HTTPStatus.FORBIDDEN:
                    raise
                raise No(f"nothing was changed: {pod.key} cannot be evicted: {err}") from err

    async def _make(self, number: int, move: Move) -> None:
        pod, total = move.movable.pod, len(self._plan.moves)
        await self._cordons.keep(move.closed)
        known = {each.uid for each in await self._siblings(pod)}
        await self._evicted(number, pod)
        self._say(f"{number + 1} of {total}: {pod.key} is evicted")
        await poll(lambda: self._is_replaced(pod, known), RUNS_SECONDS)
        nodes, pods = await nodes_and_pods(self._kube)
        world = ListedCluster(self._cordons.without(nodes), pods)
        found = _replacement(pods, pod, known)
        if found is None:
            raise No(
                f"stopped after {counted(number, 'move')}: within {RUNS_SECONDS:g} s no pod runs "
                f"instead of {pod.key}, or that one has not ended: see `kubectl -n "
                f"{pod.metadata.namespace} get pods`"
            )
        share = share_of(found, world.ledger.inventory(found.node))
        on = place(where(world, Place(found.node, share.cards))) if share else found.node
        self._say(f"{number + 1} of {total}: {found.key} runs on {on}")
        why = run_all(check.why_not(world, self._plan, number + 1))
        if self._plan.freed and share and check.takes_free_card(world, share, move):
            why = why or f"{found.key} uses a GPU that was free"
        if why:
            raise No(
                f"stopped after {number + 1} of {counted(total, 'move')}, because room is used "
                f"that the plan needs: {why}. Run the command again for a new plan"
            )

    async def _evicted(self, number: int, pod: Pod) -> None:
        """Evict a pod as soon as its budget allows that."""
        end = time.monotonic() + BUDGET_SECONDS
        while True:
            try:
                await self._evict(pod)
            except NotFound:
                return  # its controller replaces it all the same
            except ApiError as err:
                is_budget = err.code == HTTPStatus.TOO_MANY_REQUESTS
                if is_budget and time.monotonic() < end:
                    await asyncio.sleep(AGAIN_SECONDS)
                    continue
                if err.code == HTTPStatus.FORBIDDEN:
                    raise
                done = counted(number, "move")
                raise No(f"stopped after {done}: {pod.key} cannot be evicted: {err}") from err
            return

    async def _evict(self, pod: Pod, *, is_trial: bool = False) -> None:
        with needing(Right("create", "pods/eviction", pod.metadata.namespace)):
            await self._kube.evict_pod(pod, any_version=True, is_trial=is_trial)

    async def _siblings(self, pod: Pod) -> list[Pod]:
        """Return the pods of the same controller."""
        found = await all_pods(self._kube, pod.metadata.namespace)
        return [each for each in found if each.controller_uid == pod.controller_uid]

    async def _is_replaced(self, pod: Pod, known: Collection[str]) -> bool:
        return _replacement(await self._siblings(pod), pod, known) is not None


def _replacement(pods: Collection[Pod], pod: Pod, known: Collection[str]) -> Pod | None:
    """Return the pod that runs instead of another one that has ended; None without one."""
    same = [each for each in pods if each.controller_uid == pod.controller_uid]
    if any(each.uid == pod.uid and not each.is_terminal for each in same):
        return None
    return next((each for each in same if _runs(each, known)), None)


def _runs(pod: Pod, known: Collection[str]) -> bool:
    """Return whether a pod is new and runs."""
    return pod.uid not in known and pod.runs and pod.metadata.deletion_timestamp is None
