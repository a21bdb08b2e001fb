"""Middlewares for every request: readiness, concurrency, time to answer, errors, counts."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from extender.metrics.counters import REQUESTS, SECONDS
from extender.server.paths import (
    ADMISSION,
    CHANGES,
    DECIDING,
    GATING,
    METRICS,
    NAMESPACE_CHANGES,
    NAMESPACE_USAGE,
    STREAMS,
    USAGE,
    is_page_file,
)
from extender.settings.configuration import Limits
from extender.wire import encode
from gpushare.contract import EXTENDER_PREFIX
from gpushare.http_server.requests import BadRequest, problem, send
from gpushare.telemetry.health import WhyNotReady

log = logging.getLogger(__name__)

MAX_STREAMS: Final = 20  # of changes to live pages
MAX_SCRAPES: Final = 4  # of metrics: monitoring gets through when readers use their whole limit
MAX_USAGES: Final = 4  # of the device plugins: each waits for nodes, at most for seconds
MAX_REVIEWS: Final = 8  # of the API server, about new pods: each takes a millisecond
# A pod whose review is rejected begins without a gate: a burst of pods should get through.
MAX_GATINGS: Final = 64
OUTCOME: Final = web.RequestKey("outcome", str)  # for the metric, finer than the status
# A caller gets a quarter of a limit that callers share, so that it leaves room for others.
SHARES: Final = 4
LEAST_SHARE: Final = 2  # a page of one user asks for two things at a time
ANSWER_SECONDS: Final = 30.0
FULL: Final = "as many requests of this kind as the limits allow are in progress: try again"
_SCRAPE: Final = "metrics"
_FIXED: Final = {
    CHANGES: MAX_STREAMS,
    _SCRAPE: MAX_SCRAPES,
    ADMISSION: MAX_REVIEWS,
    GATING: MAX_GATINGS,
    USAGE: MAX_USAGES,
    # Users of single namespaces leave those of others to administrators.
    NAMESPACE_CHANGES: MAX_STREAMS,
    NAMESPACE_USAGE: MAX_USAGES,
}  # limits that no setting changes


class Slot(NamedTuple):
    """The room of one request in progress: of its kind, and of its caller ("" for all callers)."""

    kind: str
    caller: str


_ACQUIRED: Final = web.RequestKey("acquired", Slot)  # to release in the limit


class ConcurrencyLimit:
    """Limits the requests of a kind in progress; ``limits`` can be replaced at any time.

    Each listener has its own limit, so that neither a verb nor a listener uses up another's.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._in_progress: Counter[str] = Counter()
        self._of_callers: Counter[Slot] = Counter()

    def acquire(self, verb: str, caller: str = "") -> Slot | None:
        """Count one more request and return what to release; None at the limit.

        A ``caller`` has at most its share of the limit.
        """
        kind = verb if verb in DECIDING or verb in _FIXED else "reading"
        most: int = _FIXED.get(kind) or getattr(self.limits, kind)
        slot = Slot(kind, caller)
        share = max(LEAST_SHARE, most // SHARES) if caller else most
        if self._in_progress[kind] >= most or self._of_callers[slot] >= share:
            return None
        self._in_progress[kind] += 1
        self._of_callers[slot] += 1
        return slot

    def release(self, slot: Slot | None) -> None:
        if slot is None:
            return
        self._in_progress[slot.kind] -= 1
        self._of_callers[slot] -= 1
        if not self._of_callers[slot]:
            del self._of_callers[slot]


def respond(why_not_ready: WhyNotReady, limit: ConcurrencyLimit) -> Middleware:
    """Return a middleware that makes a response of every outcome, counts it and sends it.

    Verbs answer 503 while ``why_not_ready`` gives reasons. A request that ``limit_concurrency``
    admitted counts until its response is sent.
    """

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        verb = _verb(request)
        try:
            if verb is None or verb == _SCRAPE:
                return await send(request, await handler(request))
            started = time.perf_counter()
            if reasons := why_not_ready():
                response: web.StreamResponse = problem(503, "; ".join(reasons))
            else:
                response = await _call(request, handler, verb)
            ended = time.perf_counter()
            await send(request, response)
            # The caller has its answer and need not wait for the metrics.
            if verb not in STREAMS:  # a stream has no duration of interest
                SECONDS.labels(verb).observe(ended - started)
            REQUESTS.labels(verb, request.get(OUTCOME) or str(response.status)).inc()
            return response
        finally:
            limit.release(request.get(_ACQUIRED))

    return middleware


def limit_concurrency(
    limit: ConcurrencyLimit, caller_of: Callable[[web.Request], str] = lambda _: ""
) -> Middleware:
    """Return a middleware that counts requests; each caller that ``caller_of`` names has a share.

    Put ``receive_bodies`` before it: then no caller keeps a slot by not sending its body.
    """

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        if (verb := _verb(request)) is not None:
            if (slot := limit.acquire(verb, caller_of(request))) is None:
                return full(FULL)
            request[_ACQUIRED] = slot
        return await handler(request)

    return middleware


def _verb(request: web.Request) -> str | None:
    """Return what a request counts as; None for health and the live page's files."""
    if (name := request.match_info.route.name) in DECIDING:
        return name
    if request.path == METRICS:
        return _SCRAPE
    if not request.path.startswith(EXTENDER_PREFIX) or is_page_file(request.path):
        return None
    return name or "unknown"


async def _call(request: web.Request, handler: Handler, verb: str) -> web.StreamResponse:
    limit = asyncio.timeout(None if verb in STREAMS else ANSWER_SECONDS)
    try:
        async with limit:
            return await handler(request)
    except BadRequest as err:
        return problem(err.status, str(err))
    except web.HTTPException as err:
        return problem(err.status, err.reason)
    except Exception as err:
        if isinstance(err, TimeoutError) and limit.expired():
            return problem(503, f"there was no answer within {ANSWER_SECONDS:.0f} s")
        log.exception("verb failed", extra={"verb": verb})
        return problem(500, "the extender failed: see its log")


def answer(found: msgspec.Struct | list[Any]) -> web.Response:
    """Return a 200, the only status that kube-scheduler accepts as success."""
    return web.Response(body=encode(found), content_type="application/json")


def full(text: str) -> web.Response:
    """Return a 429 that asks the caller to try again in a second."""
    response = problem(429, text)
    response.headers["Retry-After"] = "1"
    return response
