"""Middlewares for every request: readiness, concurrency, size and time limits, errors, counts."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Final, TypeVar

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
    USAGE,
    is_page_file,
)
from extender.settings.configuration import Limits
from extender.wire import encode
from gpushare.contract import EXTENDER_PREFIX
from gpushare.errors import UNDECODABLE, GpushareError
from gpushare.telemetry.health import WhyNotReady

log = logging.getLogger(__name__)

MAX_ERROR: Final = 300
MAX_STREAMS: Final = 20  # of changes to live pages
MAX_SCRAPES: Final = 4  # of metrics: monitoring gets through when readers use their whole limit
MAX_USAGES: Final = 4  # of the device plugins: each waits for nodes, at most for seconds
MAX_REVIEWS: Final = 8  # of the API server, about new pods: each takes a millisecond
# A pod whose review is rejected begins without a gate: a burst of pods should get through.
MAX_GATINGS: Final = 64
OUTCOME: Final = web.RequestKey("outcome", str)  # for the metric, finer than the status
_ACQUIRED: Final = web.RequestKey("acquired", str)  # the kind to release in the limit
# kube-scheduler hangs up after 5 s, and sends even 40 MiB over loopback within one.
BODY_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 30.0
SEND_SECONDS: Final = 10.0
SMALL: Final = 32 * 1024  # bytes of a response, half of what a connection buffers
FULL: Final = "as many requests of this kind as the limits allow are in progress: try again"
_SCRAPE: Final = "metrics"
_FIXED: Final = {
    CHANGES: MAX_STREAMS,
    _SCRAPE: MAX_SCRAPES,
    ADMISSION: MAX_REVIEWS,
    GATING: MAX_GATINGS,
    USAGE: MAX_USAGES,
}  # limits that no setting changes

T = TypeVar("T")


class BadRequest(GpushareError):
    """The verb cannot use the request; answered with ``status``."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status


class ConcurrencyLimit:
    """Limits the requests of a kind in progress; ``limits`` can be replaced at any time.

    Each listener has its own limit, so that neither a verb nor a listener uses up another's.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._in_progress: Counter[str] = Counter()

    def acquire(self, verb: str) -> str | None:
        """Count one more request and return the kind to release; None at the limit."""
        kind = verb if verb in DECIDING or verb in _FIXED else "reading"
        most: int = _FIXED.get(kind) or getattr(self.limits, kind)
        if self._in_progress[kind] >= most:
            return None
        self._in_progress[kind] += 1
        return kind

    def release(self, kind: str | None) -> None:
        if kind is not None:
            self._in_progress[kind] -= 1


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
                return await _send(request, await handler(request))
            started = time.perf_counter()
            if reasons := why_not_ready():
                response: web.StreamResponse = problem(503, "; ".join(reasons))
            else:
                response = await _call(request, handler, verb)
            ended = time.perf_counter()
            await _send(request, response)
            # The caller has its answer and need not wait for the metrics.
            if verb != CHANGES:  # a stream has no duration of interest
                SECONDS.labels(verb).observe(ended - started)
            REQUESTS.labels(verb, request.get(OUTCOME) or str(response.status)).inc()
            return response
        finally:
            limit.release(request.get(_ACQUIRED))

    return middleware


def limit_concurrency(limit: ConcurrencyLimit) -> Middleware:
    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        if (verb := _verb(request)) is not None:
            if (kind := limit.acquire(verb)) is None:
                return full(FULL)
            request[_ACQUIRED] = kind
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
    limit = asyncio.timeout(None if verb == CHANGES else ANSWER_SECONDS)
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


async def _send(request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
    """Send here, so that a slow receiver counts as in progress and has a time limit.

    What the connection takes at once needs no limit, which costs more than to send it.
    """
    try:
        async with nullcontext() if _is_taken(request, response) else asyncio.timeout(SEND_SECONDS):
            await response.prepare(request)
            await response.write_eof()
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
    except ConnectionError:
        pass  # the caller hung up, which the server notices too
    return response


def _is_taken(request: web.Request, response: web.StreamResponse) -> bool:
    """Return whether a response goes into the buffer of the connection without waiting."""
    transport = request.transport
    is_small = isinstance(response, web.Response) and (response.content_length or 0) <= SMALL
    return is_small and transport is not None and not transport.get_write_buffer_size()


async def whole_body(request: web.Request) -> bytes:
    """Return the body, within the limits on its size and time; raise BadRequest."""
    most = request.client_max_size
    if (request.content_length or 0) > most:
        raise BadRequest(
            f"the body has {request.content_length} bytes, and the limit is {most}", 413
        )
    try:
        async with nullcontext() if request.content.is_eof() else asyncio.timeout(BODY_SECONDS):
            return await request.read()
    except TimeoutError as err:
        raise BadRequest(f"the body did not arrive within {BODY_SECONDS:.0f} s", 408) from err
    except web.HTTPRequestEntityTooLarge as err:
        raise BadRequest(f"the body has more than {most} bytes, which is the limit", 413) from err
    except web.RequestPayloadError as err:
        raise BadRequest(f"body cannot be read: {err}") from err


async def decoded(decode: Callable[[bytes], T], request: web.Request) -> T:
    """Return the decoded body; raise BadRequest."""
    body = await whole_body(request)
    try:
        return decode(body)
    except UNDECODABLE as err:
        raise BadRequest(f"body cannot be read: {err}") from err


def answer(found: msgspec.Struct | list[Any]) -> web.Response:
    """Return a 200, the only status that kube-scheduler accepts as success."""
    return web.Response(body=encode(found), content_type="application/json")


def problem(status: int, text: str) -> web.Response:
    return web.json_response({"Error": text[:MAX_ERROR]}, status=status)


def full(text: str) -> web.Response:
    """Return a 429 that asks the caller to try again in a second."""
    response = problem(429, text)
    response.headers["Retry-After"] = "1"
    return response
