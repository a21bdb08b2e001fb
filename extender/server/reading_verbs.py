"""The verbs that only read: inspect, explain, gangs, queue, quota and what-if."""

from collections.abc import Generator
from itertools import chain, islice
from typing import Final, TypeVar

import msgspec
from aiohttp import web

from extender.decisions.cluster_state import ClusterState
from extender.server.authorization import NAMED_ONLY
from extender.server.limits import answer
from extender.server.paths import (
    GANGS,
    NAMESPACE_GANGS,
    NAMESPACE_QUEUE,
    NAMESPACE_QUOTA,
    QUEUE,
    QUOTA,
)
from gpushare.answers import explain, gang_what_if, inspect, what_if
from gpushare.answers.gangs import list_gangs
from gpushare.answers.what_if import QuotaOutlook
from gpushare.contract import EXTENDER_PREFIX, RESOURCE_MEMORY
from gpushare.http_server.requests import BadRequest, decoded, problem
from gpushare.objects.model import Pod
from gpushare.placement.reasons import Reason
from gpushare.process.time_slices import Turns

MOST_NODES: Final = 1000
_SHOWN: Final = 63

T = TypeVar("T")


class Reading:
    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._turns = Turns()

    def add_to(self, app: web.Application) -> None:
        add, prefix = app.router.add_get, EXTENDER_PREFIX
        add(f"{prefix}/inspect", self._inspect, name="inspect")
        add(f"{prefix}/inspect/{{node}}", self._inspect_node, name="inspect_node")
        add(f"{prefix}/explain/{{namespace}}/{{pod}}", self._explain, name="explain")
        add(f"{prefix}/gangs", self._gangs, name=GANGS)
        add(f"{prefix}/gangs/{{namespace}}", self._gangs, name=NAMESPACE_GANGS)
        add(f"{prefix}/queue", self._queue, name=QUEUE)
        add(f"{prefix}/queue/{{namespace}}", self._queue, name=NAMESPACE_QUEUE)
        add(f"{prefix}/quota", self._quota, name=QUOTA)
        add(f"{prefix}/quota/{{namespace}}", self._quota, name=NAMESPACE_QUOTA)
        app.router.add_post(f"{prefix}/what-if", self._what_if, name="what_if")
        app.router.add_post(f"{prefix}/what-if/gang", self._gang_what_if, name="gang_what_if")

    async def _found(self, steps: Generator[None, None, T]) -> T:
        return await self._turns.run(steps)

    async def _inspect(self, _: web.Request) -> web.Response:
        state = self._state
        return answer(await self._found(inspect.view_cluster(state.ledger, state.unreadable)))

    async def _inspect_node(self, request: web.Request) -> web.Response:
        name = request.match_info["node"]
        unread = self._state.unreadable.get(name, "")
        view = inspect.view_node(self._state.ledger, name, unread)
        if view is None:
            return problem(404, f"node {name[:253]!r} has no GPUs shared by memory")
        return answer(inspect.ClusterView([msgspec.Raw(msgspec.json.encode(view))]))

    async def _explain(self, request: web.Request) -> web.Response:
        namespace, name = request.match_info["namespace"], request.match_info["pod"]
        shown = _nodes_shown(request)
        state = self._state
        pod = state.pods.named(namespace, name) or _member(state, namespace, name)
        if pod is None:
            return problem(
                404,
                f"no live pod {namespace[:_SHOWN]}/{name[:_SHOWN]} requests {RESOURCE_MEMORY}: "
                "it does not exist, has ended, or does not request it and is in no gang",
            )
        record = state.pods.get(pod.uid)
        asked = record.asked if record is not None else None
        now = state.clock.monotonic()
        view = await self._found(explain.explain(state, pod, asked, now=now, shown=shown))
        only = request.get(NAMED_ONLY)
        return answer(view if only is None else explain.without_names_of_others(view, only))

    async def _gangs(self, request: web.Request) -> web.Response:
        namespace = request.match_info.get("namespace", "")
        return answer(await self._found(list_gangs(self._state.gangs, namespace)))

    async def _queue(self, request: web.Request) -> web.Response:
        namespace = request.match_info.get("namespace", "")
        return answer(await self._found(self._state.queue.entries(namespace)))

    async def _quota(self, request: web.Request) -> web.Response:
        namespace = request.match_info.get("namespace", "")
        return answer(await self._found(self._state.queue.quotas(namespace)))

    async def _what_if(self, request: web.Request) -> web.Response:
        question = await decoded(what_if.read_question, request, most=what_if.MAX_BODY)
        extras = await decoded(what_if.read_extras, request, most=what_if.MAX_BODY)
        if extras.pod.kind != "Pod":
            kind = extras.pod.kind[:_SHOWN]
            raise BadRequest(f"pod is a {kind!r}: send a Pod; for a workload, its pod template")
        if not question.pod.containers:
            raise BadRequest("pod has no containers - at `$.pod.spec.containers`")
        state = self._state
        steps = what_if.answer_with_evictions(state, question, extras, state.victim_rules)
        found = await self._found(steps)
        needed = state.quotas.units_of(question.pod) * question.count
        return answer(self._with_quota(found, question.pod, needed))

    async def _gang_what_if(self, request: web.Request) -> web.Response:
        question = await decoded(gang_what_if.read_question, request, most=what_if.MAX_BODY)
        state = self._state
        steps = gang_what_if.answer(state, question, state.zone_roles, state.victim_rules)
        found = await self._found(steps)
        parts = ([state.quotas.units_of(part.pod)] * part.count for part in question.parts)
        least = found.gang.minimum if found.gang is not None else 0
        needed = sum(islice(chain.from_iterable(parts), least))
        return answer(self._with_quota(found, question.parts[0].pod, needed))

    def _with_quota(self, found: what_if.Answer, pod: Pod, needed: int) -> what_if.Answer:
        """Add why pods that do not exist yet may not use so many units.

        Limits of single models do not count: nobody knows which GPUs the pods would get.
        """
        namespace = pod.metadata.namespace
        left = self._state.quotas.left(namespace)
        if not needed or left is None:
            return found
        if isinstance(left, Reason):
            found.fits, found.quota = False, QuotaOutlook(namespace, 0, needed, left.text)
        elif needed > left.units:
            found.fits, found.quota = False, QuotaOutlook(namespace, int(left.units), needed)
        return found


def _member(state: ClusterState, namespace: str, name: str) -> Pod | None:
    """Return a live member of a gang with this name; it may request no GPU memory."""
    groups = [group for group in state.groups if group.key.namespace == namespace]
    pods = (pod for group in groups for pod in group.members.values())
    return next((pod for pod in pods if pod.metadata.name == name), None)


def _nodes_shown(request: web.Request) -> int:
    text = request.query.get("nodes", str(explain.NODES_SHOWN))
    if not (text.isascii() and text.isdigit() and len(text) <= 4 and int(text) <= MOST_NODES):  # noqa: PLR2004
        raise BadRequest(f"nodes={text[:_SHOWN]!r}: write a number from 0 to {MOST_NODES}")
    return int(text)
