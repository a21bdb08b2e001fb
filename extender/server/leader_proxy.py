"""Deciding calls that reach a replica which does not lead: handed to the leader as they are.

What comes in from another replica is never handed on again, so there can be no loop: that listener
has a gate of its own.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from typing import Final, Self

import aiohttp
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from extender.leadership.election import Leadership
from extender.metrics.counters import FORWARDED
from extender.server.limits import DECIDING, problem, whole_body
from extender.server.tls import Reloading, is_allowed
from gpushare.kube.lease import Record

log = logging.getLogger(__name__)

# kube-scheduler hangs up after 5 s. The leader answers a bind within 4.6 s of its coming there
# (``bind.ANSWER_SECONDS``). The others are on kube-scheduler's serial path: a silent leader must
# not hold up pods that ask for no GPU.
SECONDS: Final = {"bind": 4.85}
SERIAL_SECONDS: Final = 2.0
CONNECT_SECONDS: Final = 1.0
CONNECTIONS: Final = 64  # kept open; as many calls at a time, others wait for their turn
SERIAL_CONNECTIONS: Final = 16  # of their own: a filter never waits for its turn behind binds
IDLE_SECONDS: Final = 60.0
_KEPT_HEADERS: Final = ("Content-Type", "Retry-After")


class Forwarder:
    """Keeps connections to the leader. Open it with ``connect``.

    A leader that did not answer is not asked again until it has renewed its lease: each such call
    would hold up kube-scheduler for its whole time limit.
    """

    def __init__(
        self,
        binds: aiohttp.ClientSession,
        serial: aiohttp.ClientSession,
        leader: Callable[[], Record | None],
        contexts: Reloading,
        server_name: str,
    ) -> None:
        self._binds, self._serial, self._leader = binds, serial, leader
        self._contexts, self._server_name = contexts, server_name
        self._silent: Record | None = None

    @classmethod
    @asynccontextmanager
    async def connect(
        cls, leader: Callable[[], Record | None], contexts: Reloading, server_name: str
    ) -> AsyncIterator[Self]:
        """``server_name`` is what the leader's certificate must say, whatever its address."""
        async with _session(CONNECTIONS) as binds, _session(SERIAL_CONNECTIONS) as serial:
            yield cls(binds, serial, leader, contexts, server_name)

    async def forward(self, request: web.Request, verb: str) -> web.Response | None:
        """The leader's answer as it is; None where no leader is known or it does not answer."""
        leader = self._leader()
        if leader is None or not leader.address or leader == self._silent:
            FORWARDED.labels("no_leader" if leader is None else "silent_leader").inc()
            return None
        body = await whole_body(request)
        limit = aiohttp.ClientTimeout(
            total=SECONDS.get(verb, SERIAL_SECONDS), sock_connect=CONNECT_SECONDS
        )
        try:
            session = self._binds if verb in SECONDS else self._serial
            async with session.post(
                f"https://{leader.address}{request.path}",
                data=body,
                headers={"Content-Type": "application/json"},
                timeout=limit,
                ssl=self._contexts.current(),
                server_hostname=self._server_name,
                allow_redirects=False,
            ) as answer:
                found = await answer.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as err:
            # A bind may take as long as the API server takes: that says nothing about the leader.
            if verb not in SECONDS or not isinstance(err, asyncio.TimeoutError):
                # As it is known by now: what was written before it fell silent may be seen later.
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
    """The gate for what kube-scheduler asks: the leader decides, others hand it on."""

    @web.middleware
    async def gate(request: web.Request, handler: Handler) -> web.StreamResponse:
        verb = request.match_info.route.name
        if verb not in DECIDING or leadership.decides:
            return await handler(request)
        answer = await forwarder.forward(request, verb)
        return problem(503, leadership.why_not) if answer is None else answer

    return gate


def decide_for_replicas(leadership: Leadership, names: Collection[str]) -> Middleware:
    """The gate for what other replicas hand on: only they may, and only the leader answers."""

    @web.middleware
    async def gate(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not is_allowed(request, names):
            return problem(403, "the caller's certificate has none of the names allowed here")
        if request.match_info.route.name not in DECIDING:
            return problem(404, "only what decides is answered here")
        if not leadership.decides:
            return problem(503, leadership.why_not)
        return await handler(request)

    return gate
