"""Which pages there are, and on which listener."""

from collections.abc import Callable, Sequence
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Middleware

from extender.binding.binder import Binder
from extender.page.streams import Viewers
from extender.server.browser_origin import add_page, own_pages_only
from extender.server.limits import Gate, entered, guard
from extender.server.reading_verbs import Reading
from extender.server.scheduler_verbs import Verbs
from extender.settings.configuration import Limits
from extender.watch.cluster import Cluster
from gpushare.telemetry.health import MoreMetrics, WhyNotReady, add_pages, nothing

MIB: Final = 2**20
MAX_QUESTION: Final = 2 * MIB  # of who only reads: one pod, which etcd itself takes no larger


class Routes:
    """The extender's pages. Until ``why_not_ready`` is silent the verbs answer 503.

    The ``gates`` of an application say who may pass to its pages, the first one first. ``leads``
    says whether this replica decides.
    """

    def __init__(
        self,
        cluster: Cluster,
        binder: Binder,
        why_not_ready: WhyNotReady,
        *,
        limits: Limits | None = None,
        more_metrics: MoreMetrics = nothing,
        leads: Callable[[], bool] = lambda: True,
    ) -> None:
        self._more_metrics = more_metrics
        self._verbs, self._reading = Verbs(cluster, binder), Reading(cluster)
        self._viewers = Viewers(cluster, leads)
        self._why_not_ready = why_not_ready
        self._limits = limits or Limits()
        self._rooms: list[Gate] = []

    def app(self, *gates: Middleware) -> web.Application:
        """All pages, for kube-scheduler and for who is on its machine.

        What a gate does takes a place as the verb itself: it may hand the call on.
        """
        app = self._application(self._limits.body_mib * MIB, inside=gates)
        self._verbs.add_to(app)
        self._add_reading(app)
        return app

    def reading_app(self, *gates: Middleware) -> web.Application:
        """The pages that decide nothing. Only who has passed the gates takes a place."""
        app = self._application(MAX_QUESTION, outside=gates)
        self._add_reading(app)
        return app

    def limit(self, limits: Limits) -> None:
        """From now on these hold, but for the size of a body."""
        self._limits = limits
        for gate in self._rooms:
            gate.limits = limits

    def _add_reading(self, app: web.Application) -> None:
        self._reading.add_to(app)
        self._viewers.add_to(app)
        add_page(app)

    def _application(
        self, most: int, *, outside: Sequence[Middleware] = (), inside: Sequence[Middleware] = ()
    ) -> web.Application:
        gate = Gate(self._limits)
        self._rooms.append(gate)
        guarded = guard(self._why_not_ready, gate)
        app = web.Application(
            client_max_size=most,
            middlewares=[own_pages_only, guarded, *outside, entered(gate), *inside],
        )
        add_pages(app, self._why_not_ready, self._more_metrics)
        return app
