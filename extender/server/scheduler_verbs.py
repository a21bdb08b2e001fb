"""The verbs that decide, which kube-scheduler calls."""

import logging
from collections import Counter
from typing import Final

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from extender.binding.binder import Binder, BindRefused
from extender.decisions.scheduling import Scheduling
from extender.gangs.answers import GangAnswers, NotWatchedYet
from extender.metrics.counters import PREEMPTION_VETOES
from extender.server.limits import OUTCOME, answer
from extender.wire import (
    BindingResult,
    ExtenderArgs,
    FilterResult,
    HostPriority,
    MetaPod,
    MetaVictims,
    PreemptionResult,
    decode_args,
    decode_binding,
    decode_preemption,
)
from gpushare.contract import EXTENDER_PREFIX
from gpushare.errors import UNDECODABLE, GpushareError, NoRoom, RequestError
from gpushare.http_server.requests import MAX_ERROR, BadRequest, decoded
from gpushare.objects.model import Pod
from gpushare.objects.pod_reader import UndecodedPod, pod_of
from gpushare.process.time_slices import Turns

log = logging.getLogger(__name__)

MAX_NAME: Final = 253


class Verbs:
    """``turns`` are those of computations that let these calls pass."""

    def __init__(
        self, scheduling: Scheduling, answers: GangAnswers, binder: Binder, turns: Turns
    ) -> None:
        self._scheduling, self._answers, self._binder = scheduling, answers, binder
        self._turns, self._pods = turns, scheduling.state.pods

    def add_to(self, app: web.Application) -> None:
        for name, handler in (
            ("filter", self._first(self._filter)),
            ("prioritize", self._first(self._prioritize)),
            ("preempt", self._first(self._preempt)),
            ("bind", self._bind),  # kube-scheduler places other pods while one is bound
        ):
            app.router.add_post(f"{EXTENDER_PREFIX}/{name}", handler, name=name)

    def _first(self, handler: Handler) -> Handler:
        async def answered(request: web.Request) -> web.StreamResponse:
            with self._turns.answering():
                return await handler(request)

        return answered

    async def _filter(self, request: web.Request) -> web.Response:
        args = await decoded(decode_args, request)
        names, full = _nodes(args)
        pod = self._pod(args.pod)
        try:
            found = await self._answers.filter(pod, names)
        except NotWatchedYet as err:
            request[OUTCOME] = "not_watched"
            return answer(FilterResult(error=str(err)))
        if found.is_retried:
            request[OUTCOME] = "retried"
            return answer(FilterResult(error=next(iter(found.final.values()))))
        result = FilterResult(failed_nodes=found.failed, failed_and_unresolvable_nodes=found.final)
        if full is None:
            result.node_names = found.fitting
        else:
            result.nodes = {"items": [full[name] for name in found.fitting]}
        request[OUTCOME] = "some" if found.fitting else "none"
        log.debug(
            "filtered",
            extra={
                "pod": pod.key,
                "uid": pod.uid,
                "asked": len(names),
                "offered": len(found.fitting),
                "best": found.best,
            },
        )
        return answer(result)

    async def _prioritize(self, request: web.Request) -> web.Response:
        args = await decoded(decode_args, request)
        names, _ = _nodes(args)
        pod = self._pod(args.pod)
        try:
            found = self._scheduling.prioritize(pod, names)
        except RequestError as err:
            raise BadRequest(str(err)) from err  # filter has rejected every node for it
        log.debug(
            "prioritized",
            extra={
                "pod": pod.key,
                "uid": pod.uid,
                "asked": len(names),
                "best": found.order[0] if found.order else "",
            },
        )
        return answer(list(map(HostPriority, found.order, found.scores)))

    async def _bind(self, request: web.Request) -> web.Response:
        args = await decoded(decode_binding, request)
        if not (args.pod_uid and args.node and args.pod_name and args.pod_namespace):
            raise BadRequest("PodName, PodNamespace, PodUID and Node must all be given")
        if max(map(len, (args.pod_uid, args.node, args.pod_name, args.pod_namespace))) > MAX_NAME:
            raise BadRequest(f"names in Kubernetes have at most {MAX_NAME} characters")
        try:
            await self._binder.bind(args)
        except GpushareError as err:
            # In a 200: kube-scheduler hides the text of any other status from the pod's owner.
            request[OUTCOME] = _outcome(err)
            log.warning(
                "bind refused",
                extra={
                    "pod": f"{args.pod_namespace}/{args.pod_name}",
                    "uid": args.pod_uid,
                    "node": args.node,
                    "outcome": request[OUTCOME],
                    "why": str(err),
                },
            )
            return answer(BindingResult(str(err)[:MAX_ERROR]))
        request[OUTCOME] = "bound"
        return answer(BindingResult())

    async def _preempt(self, request: web.Request) -> web.Response:
        args = await decoded(decode_preemption, request)
        proposed = args.proposed()
        if proposed is None:
            raise BadRequest("neither NodeNameToMetaVictims nor NodeNameToVictims is given")
        uids = {node: [pod.uid for pod in each.pods or ()] for node, each in proposed.items()}
        pod = self._pod(args.pod)
        found = await self._answers.preempt(pod, uids)
        request[OUTCOME] = "some" if found.kept else "none"
        for veto, _ in found.vetoed.values():
            PREEMPTION_VETOES.labels(veto).inc()
        log.info(
            "preemption judged",
            extra={
                "pod": pod.key,
                "uid": pod.uid,
                "kept": len(found.kept),
                "vetoed": Counter(text for _, text in found.vetoed.values()),
            },
        )
        return answer(
            PreemptionResult(
                {
                    node: MetaVictims(
                        list(map(MetaPod, victims)), proposed[node].num_pdb_violations
                    )
                    for node, victims in found.kept.items()
                }
            )
        )

    def _pod(self, parts: UndecodedPod) -> Pod:
        """Return the pod of a call; it is not decoded again if the watch has shown this version."""
        version, known = parts.metadata.resource_version, self._pods.pod(parts.metadata.uid)
        if known is not None and version == known.metadata.resource_version and not known.node:
            return known
        try:
            return pod_of(parts)
        except UNDECODABLE as err:
            raise BadRequest(f"body cannot be read: {err} - at `$.Pod`") from err


def _outcome(err: GpushareError) -> str:
    if isinstance(err, BindRefused):
        return err.outcome
    return "no_room" if isinstance(err, NoRoom) else "refused"


def _nodes(args: ExtenderArgs) -> tuple[list[str], dict[str, msgspec.Raw] | None]:
    """Return the names of the nodes, and the full nodes if the body has them."""
    try:
        full = args.full_nodes()
    except UNDECODABLE as err:
        raise BadRequest(f"a node in Nodes cannot be read: {err}") from err
    names = args.node_names if full is None else list(full)
    if names is None:
        raise BadRequest("neither NodeNames nor Nodes is given")
    return names, full
