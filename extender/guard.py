"""What every verb has around it: readiness, bad bodies, time, counts, and no stack trace."""

import logging
import time
from typing import Any, Final, TypeVar

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from extender.metrics import REQUESTS, SECONDS
from extender.wire import encode
from gpushare.contract import EXTENDER_PREFIX
from gpushare.errors import GpushareError
from gpushare.telemetry.health import WhyNotReady

log = logging.getLogger(__name__)

MAX_ERROR: Final = 300
OUTCOME: Final = web.RequestKey("outcome", str)  # finer than the status, for the metric

T = TypeVar("T")


class BadRequest(GpushareError):
    """The body is not what the verb takes; answered with 400."""


def guard(why_not_ready: WhyNotReady) -> Middleware:
    """A middleware: until ``why_not_ready`` is silent the verbs answer 503."""

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not request.path.startswith(EXTENDER_PREFIX):
            return await handler(request)
        verb = request.match_info.route.name or "unknown"
        started = time.perf_counter()
        try:
            reasons = why_not_ready()
            response = problem(503, "; ".join(reasons)) if reasons else await handler(request)
        except BadRequest as err:
            response = problem(400, str(err))
        except web.HTTPException as err:
            response = problem(err.status, err.reason)
        except Exception:
            log.exception("verb failed", extra={"verb": verb})
            response = problem(500, "the extender failed; its log says more")
        SECONDS.labels(verb).observe(time.perf_counter() - started)
        outcome = request.get(OUTCOME) or str(response.status)
        REQUESTS.labels(verb, outcome).inc()
        return response

    return guarded


async def decoded(decoder: msgspec.json.Decoder[T], request: web.Request) -> T:
    """The body as the verb takes it; raises BadRequest."""
    try:
        return decoder.decode(await request.read())
    except (msgspec.DecodeError, RecursionError, web.RequestPayloadError) as err:
        raise BadRequest(f"body cannot be read: {err}") from err


def answer(found: msgspec.Struct | list[Any]) -> web.Response:
    """A 200, the one status that kube-scheduler takes as success."""
    return web.Response(body=encode(found), content_type="application/json")


def problem(status: int, text: str) -> web.Response:
    return web.json_response({"Error": text[:MAX_ERROR]}, status=status)
