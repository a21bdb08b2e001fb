"""The extender's HTTP applications, and which one each listener of the configuration serves."""

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Middleware

from extender.binding.binder import Binder
from extender.gangs.answers import GangAnswers
from extender.gangs.planning import GangPlanning
from extender.metrics.counters import REFUSED_CONNECTIONS
from extender.page.streams import ChangeStreams
from extender.page.usage import PluginUsage, add_usage
from extender.server.admission import MAX_REVIEW
from extender.server.admission import add_to as add_webhooks
from extender.server.authorization import CALLER, Authorizer, authorize
from extender.server.browser_origin import reject_other_hosts, reject_other_sites
from extender.server.limits import ConcurrencyLimit, limit_concurrency, respond
from extender.server.reading_verbs import Reading
from extender.server.scheduler_verbs import Verbs
from extender.server.tls import certificate_context, require_name, server_context
from extender.settings.configuration import Limits
from extender.settings.listeners import Address, Admission, Listen, Tls, is_loopback
from extender.watch.cluster import ClusterWatch
from gpushare.errors import SettingsError
from gpushare.http_server.listeners import Listener, serve_app
from gpushare.http_server.requests import receive_bodies
from gpushare.live_page.files import add_page
from gpushare.live_page.history import History
from gpushare.telemetry.health import MoreMetrics, WhyNotReady, add_pages, nothing

log = logging.getLogger(__name__)

MIB: Final = 2**20
MAX_QUESTION: Final = 2 * MIB  # for callers that only read: one pod, which is at most 1.5 MiB
# kube-scheduler opens a connection for each bind in progress, and closes an idle one after 90 s: if
# the extender closed it first, the next call could fail.
DECIDING_CONNECTIONS: Final = 2000
DECIDING_IDLE_SECONDS: Final = 95.0
READING_CONNECTIONS: Final = 100
READING_IDLE_SECONDS: Final = 15.0
# A TLS connection takes 0.3 MB, from the turn of its handshake: together with everything else that
# must stay below the memory limit of the manifests. Another replica keeps 80 open.
REPLICA_CONNECTIONS: Final = 1000
# The API server shows no certificate, so its address stays untrusted.
ADMISSION_HANDSHAKES: Final = 64
ADMISSION_FIRST_SECONDS: Final = 5.0
# Bodies that are received at a time from one address. kube-scheduler and a replica may use every
# slot. The API server sends a pod in a few packets.
DECIDING_BODIES: Final = 64
ADMISSION_BODIES: Final = 16
READING_BODIES: Final = 4


class Routes:
    """Makes the applications. Their verbs answer 503 while ``why_not_ready`` gives reasons.

    ``leads`` returns whether this replica decides. ``history`` and ``usage`` are for the live page.
    ``planning`` is shared with the duties of the leader, if it has any.
    """

    def __init__(
        self,
        cluster: ClusterWatch,
        binder: Binder,
        why_not_ready: WhyNotReady,
        *,
        limits: Limits | None = None,
        more_metrics: MoreMetrics = nothing,
        leads: Callable[[], bool] = lambda: True,
        history: History | None = None,
        usage: PluginUsage | None = None,
        planning: GangPlanning | None = None,
    ) -> None:
        scheduling = cluster.scheduling
        planning = planning or GangPlanning(scheduling)
        answers = GangAnswers(scheduling, planning, cluster.grace)
        self._verbs = Verbs(scheduling, answers, binder, planning.slices)
        self._reading = Reading(cluster.state)
        self._streams = ChangeStreams(
            cluster.state, leads, history or History(), usage=usage is not None
        )
        self._usage, self._nodes = usage, cluster.state.nodes
        self._why_not_ready, self._more_metrics = why_not_ready, more_metrics
        self._limits = limits or Limits()
        self._concurrency: list[ConcurrencyLimit] = []

    def app(self, *middlewares: Middleware, outside: Sequence[Middleware] = ()) -> web.Application:
        """Return an application with all endpoints, for kube-scheduler and its machine.

        The concurrency limit includes the middlewares: one may forward the call. No body is
        received of requests that those ``outside`` reject.
        """
        app = self._application(
            self._limits.body_mib * MIB,
            outside=outside,
            inside=middlewares,
            bodies=DECIDING_BODIES,
            caller_of=lambda _: "",
        )
        self._verbs.add_to(app)
        return app

    def reading_app(
        self, *middlewares: Middleware, inside: Sequence[Middleware] = ()
    ) -> web.Application:
        """Return an application without verbs that decide.

        The concurrency limit counts only requests that the middlewares let pass, and includes
        those ``inside``: one may forward the call.
        """
        return self._application(
            MAX_QUESTION,
            outside=middlewares,
            inside=inside,
            bodies=READING_BODIES,
            caller_of=lambda request: request.get(CALLER) or request.remote or "",
        )

    def admission_app(self, admission: Admission) -> web.Application:
        """Return the application for the API server, which asks it about new pods.

        It answers before the cluster is listed: its decision depends on the pod only.
        """
        limit = ConcurrencyLimit(self._limits)
        app = web.Application(
            client_max_size=MAX_REVIEW,
            middlewares=[
                reject_other_sites,
                respond(tuple, limit),
                receive_bodies(ADMISSION_BODIES),
                limit_concurrency(limit),
            ],
        )
        add_webhooks(app, admission)
        return app

    def limit(self, limits: Limits) -> None:
        """Replace the limits of all applications, except for the size of a body."""
        self._limits = limits
        for each in self._concurrency:
            each.limits = limits

    def _application(
        self,
        body_bytes: int,
        *,
        outside: Sequence[Middleware],
        inside: Sequence[Middleware],
        bodies: int,
        caller_of: Callable[[web.Request], str],
    ) -> web.Application:
        limit = ConcurrencyLimit(self._limits)
        self._concurrency.append(limit)
        app = web.Application(
            client_max_size=body_bytes,
            middlewares=[
                reject_other_sites,
                respond(self._why_not_ready, limit),
                *outside,
                receive_bodies(bodies),
                limit_concurrency(limit, caller_of),
                *inside,
            ],
        )
        add_pages(app, self._why_not_ready, self._more_metrics)
        self._reading.add_to(app)
        self._streams.add_to(app)
        if self._usage is not None:
            add_usage(app, self._usage, self._nodes)
        add_page(app)
        return app


def replica_listener(address: Address, tls: Tls) -> Listener:
    """Return the listener for the other replicas."""
    return Listener(
        "replicas", address.host, address.port, REPLICA_CONNECTIONS, DECIDING_IDLE_SECONDS,
        server_context(tls), refused=count_refused,
    )  # fmt: skip


def count_refused(listener: str) -> None:
    REFUSED_CONNECTIONS.labels(listener).inc()


@asynccontextmanager
async def serve(
    listen: Listen, routes: Routes, authorizer: Authorizer, *middlewares: Middleware
) -> AsyncIterator[None]:
    """Serve while the context lasts; raise SettingsError if an address or certificate fails.

    ``middlewares`` forward what only the leader decides and knows.
    """
    async with AsyncExitStack() as stack:

        async def begin(listener: Listener, app: web.Application) -> None:
            await stack.enter_async_context(serve_app(listener, app))

        plain, former, tls, reading, admission = (
            listen.deciding, listen.former, listen.deciding_tls, listen.reading, listen.admission,
        )  # fmt: skip
        deciding = Listener(
            "deciding", plain.host, plain.port, DECIDING_CONNECTIONS, DECIDING_IDLE_SECONDS,
            refused=count_refused,
        )  # fmt: skip
        await begin(deciding, routes.app(*middlewares, outside=[reject_other_hosts]))
        if former is not None:
            listener = replace(deciding, name="former", port=former.port)
            try:
                await begin(listener, routes.app(*middlewares, outside=[reject_other_hosts]))
            except SettingsError as err:  # perhaps no kube-scheduler uses it
                log.warning("former port not served", extra={"why": str(err)})
        if tls is not None:
            context = server_context(tls.tls)
            listener = replace(
                deciding, name="decidingTls", host=tls.host, port=tls.port, context=context
            )
            named = require_name(tls.tls.allowed_names)
            await begin(listener, routes.app(*middlewares, outside=[named]))
        if reading is not None:
            listener = Listener(
                "reading", reading.host, reading.port, READING_CONNECTIONS, READING_IDLE_SECONDS,
                None if reading.tls is None else certificate_context(reading.tls),
                refused=count_refused,
            )  # fmt: skip
            checks: list[Middleware] = []
            if reading.tls is None and is_loopback(reading.host):
                checks.append(reject_other_hosts)
            if reading.access == "review":
                checks.append(authorize(authorizer))
            await begin(listener, routes.reading_app(*checks, inside=middlewares))
        if admission is not None:
            # The API server keeps idle connections as kube-scheduler does.
            listener = Listener(
                "admission", admission.host, admission.port, READING_CONNECTIONS,
                DECIDING_IDLE_SECONDS, certificate_context(admission.tls),
                first_seconds=ADMISSION_FIRST_SECONDS, handshakes=ADMISSION_HANDSHAKES,
                refused=count_refused,
            )  # fmt: skip
            await begin(listener, routes.admission_app(admission))
        yield
