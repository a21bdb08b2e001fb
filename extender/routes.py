"""HTTP: decode, ask the verb, encode. kube-scheduler takes 200 alone as success."""

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import msgspec
from aiohttp import web

from extender import inspect
from extender.bind import Binder
from extender.cluster import Cluster
from extender.filter import filter_nodes
from extender.metrics import REQUESTS, SECONDS
from extender.wire import (
    BindingResult,
    ExtenderArgs,
    FilterResult,
    args_decoder,
    binding_decoder,
    encode,
)
from gpushare.contract import EXTENDER_PREFIX
from gpushare.errors import GpushareError
from gpushare.telemetry.health import WhyNotReady, add_pages

log = logging.getLogger(__name__)

MAX_BODY: Final = 64 * 2**20  # 5,000 full nodes are some 40 MiB; aiohttp's default is 1 MiB
MAX_ERROR: Final = 300
MAX_NAME: Final = 253

OUTCOME: Final = web.RequestKey("outcome", str)  # finer than the status, for the metric

T = TypeVar("T")
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class BadRequest(GpushareError):
    """The body is not what the verb takes; answered with 400."""


class Routes:
    """The extender's pages. Until ``why_not_ready`` is silent the verbs answer 503."""

    def __init__(self, cluster: Cluster, binder: Binder, why_not_ready: WhyNotReady) -> None:
        self._cluster, self._binder, self._why_not_ready = cluster, binder, why_not_ready

    def app(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY, middlewares=[self._guard])
        app.router.add_post(f"{EXTENDER_PREFIX}/filter", self._filter, name="filter")
        app.router.add_post(f"{EXTENDER_PREFIX}/bind", self._bind, name="bind")
        app.router.add_get(f"{EXTENDER_PREFIX}/inspect", self._inspect, name="inspect")
        app.router.add_get(
            f"{EXTENDER_PREFIX}/inspect/{{node}}", self._inspect_node, name="inspect_node"
        )
        add_pages(app, self._why_not_ready)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Time and count the verbs; no error of ours ever reaches a caller as a stack trace."""
        if not request.path.startswith(EXTENDER_PREFIX):
            return await handler(request)
        verb = request.match_info.route.name or "unknown"
        started = time.perf_counter()
        try:
            reasons = self._why_not_ready()
            response = _problem(503, "; ".join(reasons)) if reasons else await handler(request)
        except BadRequest as err:
            response = _problem(400, str(err))
        except web.HTTPException as err:
            response = _problem(err.status, err.reason)
        except Exception:
            log.exception("verb failed", extra={"verb": verb})
            response = _problem(500, "the extender failed; its log says more")
        SECONDS.labels(verb).observe(time.perf_counter() - started)
        outcome = request.get(OUTCOME) or str(response.status)
        REQUESTS.labels(verb, outcome).inc()
        return response

    async def _filter(self, request: web.Request) -> web.Response:
        args = await _decoded(args_decoder, request)
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
        return _json(result)

    async def _bind(self, request: web.Request) -> web.Response:
        args = await _decoded(binding_decoder, request)
        if not (args.pod_uid and args.node and args.pod_name and args.pod_namespace):
            raise BadRequest("PodName, PodNamespace, PodUID and Node must all be given")
        if max(map(len, (args.pod_uid, args.node, args.pod_name, args.pod_namespace))) > MAX_NAME:
            raise BadRequest(f"a name of more than {MAX_NAME} characters is none in Kubernetes")
        try:
            await self._binder.bind(args)
        except GpushareError as err:
            # In a 200: kube-scheduler hides the text of any other status from the pod's owner.
            request[OUTCOME] = "refused"
            log.warning("bind refused", extra={"uid": args.pod_uid, "why": str(err)})
            return _json(BindingResult(str(err)[:MAX_ERROR]))
        request[OUTCOME] = "bound"
        return _json(BindingResult())

    async def _inspect(self, _: web.Request) -> web.Response:
        ledger, unreadable = self._cluster.ledger, self._cluster.unreadable
        held = {share.node for share in ledger.shares()}
        names = sorted({*ledger.nodes(), *unreadable, *held})
        views = (inspect.view_node(ledger, name, unreadable.get(name, "")) for name in names)
        return _json(inspect.ClusterView([view for view in views if view is not None]))

    async def _inspect_node(self, request: web.Request) -> web.Response:
        name = request.match_info["node"]
        problem = self._cluster.unreadable.get(name, "")
        view = inspect.view_node(self._cluster.ledger, name, problem)
        if view is None:
            return _problem(404, f"node {name[:253]!r} has no GPUs shared by memory")
        return _json(inspect.ClusterView([view]))


async def _decoded(decoder: msgspec.json.Decoder[T], request: web.Request) -> T:
    try:
        return decoder.decode(await request.read())
    except (msgspec.DecodeError, RecursionError, web.RequestPayloadError) as err:
        raise BadRequest(f"body cannot be read: {err}") from err


def _full_nodes(args: ExtenderArgs) -> dict[str, msgspec.Raw] | None:
    try:
        return args.full_nodes()
    except (msgspec.DecodeError, RecursionError) as err:
        raise BadRequest(f"a node in Nodes cannot be read: {err}") from err


def _json(answer: msgspec.Struct) -> web.Response:
    return web.Response(body=encode(answer), content_type="application/json")


def _problem(status: int, text: str) -> web.Response:
    return web.json_response({"Error": text[:MAX_ERROR]}, status=status)
