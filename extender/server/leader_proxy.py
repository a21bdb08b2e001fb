"""Forwards calls that only the leader can answer from a replica that does not lead.

A forwarded call is never forwarded again, so there can be no loop: replicas call each other on a
listener with its own middleware.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from typing import Final, NamedTuple, Self

import aiohttp
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from yarl import URL

from extender.leadership.election import Leadership
from extender.metrics.counters import FORWARDED
from extender.server.paths import DECIDING, OF_LEADER
from extender.server.tls import ReloadingContext, is_allowed
from gpushare.http_server.requests import problem, whole_body
from gpushare.kube.lease import Record

log = logging.getLogger(__name__)

# kube-scheduler hangs up after 5 s. The leader answers a bind within 4.6 s of receiving it (the
# binder's ANSWER_SECONDS). The other verbs are on kube-scheduler's serial path: a silent leader
# must not delay pods that request no GPU.
SECONDS: Final = {"bind": 4.85}
SERIAL_SECONDS: Final = 2.0
CONNECT_SECONDS: Final = 1.0
CONNECTIONS: Final = 64  # kept open, each for one call at a time; further calls queue
SERIAL_CONNECTIONS: Final = 16  # separate, so that a filter never queues behind binds
READING_CONNECTIONS: Final = 4  # nor behind an answer of a megabyte
IDLE_SECONDS: Final = 60.0
_FORWARDED: Final = DECIDING | OF_LEADER
_KEPT_HEADERS: Final = ("Content-Type", "Retry-After")


class _Sessions(NamedTuple):
    binds: aiohttp.ClientSession
    serial: aiohttp.ClientSession
    reading: aiohttp.ClientSession

    def of(self, verb: str) -> aiohttp.ClientSession:
        if verb in OF_LEADER:
            return self.reading
        return self.binds if verb in SECONDS else self.serial


class Forwarder:
    """Keeps connections to the leader. Open it with ``connect``.

    A leader that did not answer gets no further calls until it has renewed its lease: each of them
    would delay kube-scheduler for the whole time limit.
    """

    def __init__(
        self,
        sessions: _Sessions,
        leader: Callable[[], Record | None],
        contexts: ReloadingContext,
        server_name: str,
    ) -> None:
        self._sessions, self._leader = sessions, leader
        self._contexts, self._server_name = contexts, server_name
        self._silent: Record | None = None

    @classmethod
    @asynccontextmanager
    async def connect(
        cls, leader: Callable[[], Record | None], contexts: ReloadingContext, server_name: str
    ) -> AsyncIterator[Self]:
        """Require ``server_name`` in the leader's certificate, whatever its address."""
        async with (
            _session(CONNECTIONS) as binds,
            _session(SERIAL_CONNECTIONS) as serial,
            _session(READING_CONNECTIONS) as reading,
        ):
            sessions = _Sessions(binds, serial, reading)
            yield cls(sessions, leader, contexts, server_name)

    async def forward(self, request: web.Request, verb: str) -> web.Response | None:
        """Return the leader's response unchanged; None without a leader or its response."""
        leader = self._leader()
        if leader is None or not leader.address or leader == self._silent:
            FORWARDED.labels("no_leader" if leader is None else "silent_leader").inc()
            return None
        body = await whole_body(request)
        limit = aiohttp.ClientTimeout(
            total=SECONDS.get(verb, SERIAL_SECONDS), sock_connect=CONNECT_SECONDS
        )
        try:
            # As it came: decoded, a path could become another one.
            path = request.rel_url.raw_path
            async with self._sessions.of(verb).request(
                request.method,
                URL(f"https://{leader.address}{path}", encoded=True),
                data=body or None,
                headers={"Content-Type": "application/json"},
                timeout=limit,
                ssl=self._contexts.current(),
                server_hostname=self._server_name,
                allow_redirects=False,
            ) as answer:
                found = await answer.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as err:
            # A bind can take as long as the API server does, and a list as long as it is, so their
            # timeouts do not mean that the leader is silent.
            is_slow = verb in SECONDS or verb in OF_LEADER
            if not is_slow or not isinstance(err, asyncio.TimeoutError):
                # The record as it is now: a renewal from before the silence may have arrived late.
                self._silent = self._leader() or leader
            log.warning("leader does not answer", extra={"verb": verb, "why": repr(err)})
            FORWARDED.labels("no_answer").inc()
            return None
        FORWARDED.labels(str(answer.status)).inc()
        kept = {name: answer.headers[name] for name in _KEPT_HEADERS if name in answer.headers}
        return web.Response(status=answer.status, body=found, headers=kept)


def _session(connections: int) -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(limit=connections, keepalive_timeout=IDLE_SECONDS)
    return aiohttp.ClientSession(connector=connector, auto_decompress=False)


def decide_or_forward(leadership: Leadership, forwarder: Forwarder) -> Middleware:
    """Return the middleware for what the leader decides and knows: do so as it, else forward."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        verb = request.match_info.route.name
        if verb not in _FORWARDED or leadership.decides:
            return await handler(request)
        answer = await forwarder.forward(request, verb)
        return problem(503, leadership.why_not) if answer is None else answer

    return middleware


def decide_for_replicas(leadership: Leadership, names: Collection[str]) -> Middleware:
    """Return the middleware for forwarded calls: only from replicas, only to the leader."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not is_allowed(request, names):
            return problem(403, "the caller's certificate has none of the allowed names")
        if request.match_info.route.name not in _FORWARDED:
            return problem(404, "this listener serves only what the leader decides and knows")
        if not leadership.decides:
            return problem(503, leadership.why_not)
        return await handler(request)

    return middleware
