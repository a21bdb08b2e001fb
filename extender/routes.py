"""Which pages there are."""

from typing import Final

from aiohttp import web

from extender.bind import Binder
from extender.cluster import Cluster
from extender.guard import guard
from extender.reading import Reading
from extender.verbs import Verbs
from gpushare.telemetry.health import MoreMetrics, WhyNotReady, add_pages, nothing

MAX_BODY: Final = 64 * 2**20  # 5,000 full nodes are some 40 MiB; aiohttp's default is 1 MiB


class Routes:
    """The extender's pages. Until ``why_not_ready`` is silent the verbs answer 503."""

    def __init__(
        self,
        cluster: Cluster,
        binder: Binder,
        why_not_ready: WhyNotReady,
        more_metrics: MoreMetrics = nothing,
    ) -> None:
        self._more_metrics = more_metrics
        self._verbs, self._reading = Verbs(cluster, binder), Reading(cluster)
        self._why_not_ready = why_not_ready

    def app(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY, middlewares=[guard(self._why_not_ready)])
        self._verbs.add_to(app)
        self._reading.add_to(app)
        add_pages(app, self._why_not_ready, self._more_metrics)
        return app
