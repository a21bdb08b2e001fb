"""The verbs that decide, as kube-scheduler calls them: decode, ask the verb, encode."""

import logging
from typing import Final

import msgspec
from aiohttp import web

from extender.bind import Binder, BindRefused
from extender.cluster import Cluster
from extender.filter import filter_nodes
from extender.guard import MAX_ERROR, OUTCOME, BadRequest, answer, decoded
from extender.wire import (
    BindingResult,
    ExtenderArgs,
    FilterResult,
    args_decoder,
    binding_decoder,
)
from gpushare.contract import EXTENDER_PREFIX
from gpushare.errors import GpushareError, NoRoom

log = logging.getLogger(__name__)

MAX_NAME: Final = 253


class Verbs:
    """What kube-scheduler posts to."""

    def __init__(self, cluster: Cluster, binder: Binder) -> None:
        self._cluster, self._binder = cluster, binder

    def add_to(self, app: web.Application) -> None:
        app.router.add_post(f"{EXTENDER_PREFIX}/filter", self._filter, name="filter")
        app.router.add_post(f"{EXTENDER_PREFIX}/bind", self._bind, name="bind")

    async def _filter(self, request: web.Request) -> web.Response:
        args = await decoded(args_decoder, request)
        full = _full_nodes(args)
        names = args.node_names if full is None else list(full)
        if names is None:
            raise BadRequest("neither NodeNames nor Nodes is given")
        uid = args.pod.uid
        found = filter_nodes(
            args.pod, names, lambda node, wanted: self._cluster.why_not(node, wanted, uid)
        )
        result = FilterResult(failed_nodes=found.failed, failed_and_unresolvable_nodes=found.final)
        if full is None:
            result.node_names = found.fitting
        else:
            result.nodes = {"items": [full[name] for name in found.fitting]}
        request[OUTCOME] = "some" if found.fitting else "none"
        log.debug(
            "filtered",
            extra={"pod": args.pod.key, "fitting": len(found.fitting), "asked": len(names)},
        )
        return answer(result)

    async def _bind(self, request: web.Request) -> web.Response:
        args = await decoded(binding_decoder, request)
        if not (args.pod_uid and args.node and args.pod_name and args.pod_namespace):
            raise BadRequest("PodName, PodNamespace, PodUID and Node must all be given")
        if max(map(len, (args.pod_uid, args.node, args.pod_name, args.pod_namespace))) > MAX_NAME:
            raise BadRequest(f"a name of more than {MAX_NAME} characters is none in Kubernetes")
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


def _outcome(err: GpushareError) -> str:
    if isinstance(err, BindRefused):
        return err.outcome
    return "no_room" if isinstance(err, NoRoom) else "refused"


def _full_nodes(args: ExtenderArgs) -> dict[str, msgspec.Raw] | None:
    try:
        return args.full_nodes()
    except (msgspec.DecodeError, RecursionError) as err:
        raise BadRequest(f"a node in Nodes cannot be read: {err}") from err
