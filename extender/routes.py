"""Which pages there are."""

from typing import Final

from aiohttp import web
from aiohttp.typedefs import Middleware

from extender.bind import Binder
from extender.cluster import Cluster
from extender.guard import guard
from extender.reading import Reading
from extender.verbs import Verbs
from gpushare.telemetry.health import WhyNotReady, add_pages

MAX_BODY: Final = 64 * 2**20  # 5,000 full nodes are some 40 MiB; aiohttp's default is 1 MiB


class Routes:
    """The extender's pages. Until ``why_not_ready`` is silent the verbs answer 503."""

    def __init__(self, cluster: Cluster, binder: Binder, why_not_ready: WhyNotReady) -> None:
        self._verbs, self._reading = Verbs(cluster, binder), Reading(cluster)
        self._why_not_ready = why_not_ready

    def app(self, *gates: Middleware) -> web.Application:
        """A listener's pages; ``gates`` say who may pass to them, the first one first."""
        middlewares = [guard(self._why_not_ready), *gates]
        app = web.Application(client_max_size=MAX_BODY, middlewares=middlewares)
        self._verbs.add_to(app)
        self._reading.add_to(app)
        add_pages(app, self._why_not_ready)
        return app
