"""What every verb has around it: readiness, limits, bad bodies, time, counts, no stack trace."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from extender.metrics.counters import REQUESTS, SECONDS
from extender.settings.configuration import Limits
from extender.wire import encode
from gpushare.contract import EXTENDER_PREFIX
from gpushare.errors import UNDECODABLE, GpushareError
from gpushare.telemetry.health import WhyNotReady

log = logging.getLogger(__name__)

DECIDING: Final = frozenset({"filter", "prioritize", "preempt", "bind"})  # names of routes
MAX_ERROR: Final = 300
# Routes of the live page: its files, and the stream of what changes.
PAGE: Final = f"{EXTENDER_PREFIX}/page"
CHANGES: Final = "changes"
MOST_VIEWERS: Final = 20
MOST_SCRAPES: Final = 4  # of metrics: whoever watches sees it too when readers have filled theirs
OUTCOME: Final = web.RequestKey("outcome", str)  # finer than the status, for the metric
# The one namespace whose pods may be named to the caller; where it is not set, those of all.
NAMED_ONLY: Final = web.RequestKey("named_only", str)
_INSIDE: Final = web.RequestKey("inside", str)  # the name to leave the gate by
# kube-scheduler hangs up after 5 s, and sends even 40 MiB over loopback within one.
BODY_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 30.0
SEND_SECONDS: Final = 10.0
FULL: Final = "as many such requests as the limits allow are being answered: try again"

METRICS: Final = "/metrics"
_SCRAPE: Final = "metrics"
_ROOMS: Final = {CHANGES: MOST_VIEWERS, _SCRAPE: MOST_SCRAPES}  # those that no setting changes

T = TypeVar("T")


class BadRequest(GpushareError):
    """The request is not what the verb takes; answered with ``status``."""

    status = 400


class _TooLarge(BadRequest):
    status = 413


class _TooSlow(BadRequest):
    status = 408


class Gate:
    """At most so many requests of a verb at a time; ``limits`` may be replaced while it serves.

    Each listener has one of its own, so that neither a verb nor a listener takes another's room.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._inside: Counter[str] = Counter()

    def enter(self, verb: str) -> str | None:
        """The name to leave by; None where there is no room."""
        counted = verb if verb in DECIDING or verb in _ROOMS else "reading"
        most: int = _ROOMS.get(counted) or getattr(self.limits, counted)
        if self._inside[counted] >= most:
            return None
        self._inside[counted] += 1
        return counted

    def leave(self, counted: str | None) -> None:
        if counted is not None:
            self._inside[counted] -= 1


def guard(why_not_ready: WhyNotReady, gate: Gate) -> Middleware:
    """A middleware: until ``why_not_ready`` is silent the verbs answer 503.

    Who takes a place behind it (``entered``) keeps it until his answer is sent.
    """

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        verb = _verb(request)
        try:
            if verb is None or verb == _SCRAPE:
                return await _sent(request, await handler(request))
            started = time.perf_counter()
            if reasons := why_not_ready():
                response: web.StreamResponse = problem(503, "; ".join(reasons))
            else:
                response = await _answered(request, handler, verb)
            if verb != CHANGES:  # it lasts
                SECONDS.labels(verb).observe(time.perf_counter() - started)
            REQUESTS.labels(verb, request.get(OUTCOME) or str(response.status)).inc()
            return await _sent(request, response)
        finally:
            gate.leave(request.get(_INSIDE))

    return guarded


def entered(gate: Gate) -> Middleware:
    """A middleware: whoever comes this far takes a place at ``gate``, or is told to come again."""

    @web.middleware
    async def enter(request: web.Request, handler: Handler) -> web.StreamResponse:
        if (verb := _verb(request)) is not None:
            if (counted := gate.enter(verb)) is None:
                return full(FULL)
            request[_INSIDE] = counted
        return await handler(request)

    return enter


def _verb(request: web.Request) -> str | None:
    """What a request counts as; None for health and the live page's files, which all may have."""
    path = request.path
    if path == METRICS:
        return _SCRAPE
    if not path.startswith(EXTENDER_PREFIX) or path == PAGE or path.startswith(f"{PAGE}/"):
        return None
    return request.match_info.route.name or "unknown"


async def _answered(request: web.Request, handler: Handler, verb: str) -> web.StreamResponse:
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
        return problem(500, "the extender failed; its log says more")


async def _sent(request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
    """Send here, so that whoever takes his answer slowly counts as inside and has a time limit."""
    try:
        async with asyncio.timeout(SEND_SECONDS):
            await response.prepare(request)
            await response.write_eof()
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
    except ConnectionError:
        pass  # the caller is gone; the server sees it too
    return response


async def whole_body(request: web.Request) -> bytes:
    """The body as it came, within the limits on its size and time; raises BadRequest."""
    most = request.client_max_size
    if (request.content_length or 0) > most:
        raise _TooLarge(f"the body has {request.content_length} bytes, and {most} are taken")
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await request.read()
    except TimeoutError as err:
        raise _TooSlow(f"the body did not come within {BODY_SECONDS:.0f} s") from err
    except web.HTTPRequestEntityTooLarge as err:
        raise _TooLarge(f"the body has more than the {most} bytes that are taken") from err
    except web.RequestPayloadError as err:
        raise BadRequest(f"body cannot be read: {err}") from err


async def decoded(decode: Callable[[bytes], T], request: web.Request) -> T:
    """The body as the verb takes it; raises BadRequest."""
    body = await whole_body(request)
    try:
        return decode(body)
    except UNDECODABLE as err:
        raise BadRequest(f"body cannot be read: {err}") from err


def answer(found: msgspec.Struct | list[Any]) -> web.Response:
    """A 200, the one status that kube-scheduler takes as success."""
    return web.Response(body=encode(found), content_type="application/json")


def problem(status: int, text: str) -> web.Response:
    return web.json_response({"Error": text[:MAX_ERROR]}, status=status)


def full(text: str) -> web.Response:
    """There is no room, and will be soon."""
    response = problem(429, text)
    response.headers["Retry-After"] = "1"
    return response
