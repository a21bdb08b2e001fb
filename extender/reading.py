"""The verbs that only read, for people and programs that ask why."""

from aiohttp import web

from extender import inspect
from extender.cluster import Cluster
from extender.guard import answer, problem
from gpushare.contract import EXTENDER_PREFIX


class Reading:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def add_to(self, app: web.Application) -> None:
        app.router.add_get(f"{EXTENDER_PREFIX}/inspect", self._inspect, name="inspect")
        app.router.add_get(
            f"{EXTENDER_PREFIX}/inspect/{{node}}", self._inspect_node, name="inspect_node"
        )

    async def _inspect(self, _: web.Request) -> web.Response:
        ledger, unreadable = self._cluster.ledger, self._cluster.unreadable
        held = {share.node for share in ledger.shares()}
        names = sorted({*ledger.nodes(), *unreadable, *held})
        views = (inspect.view_node(ledger, name, unreadable.get(name, "")) for name in names)
        return answer(inspect.ClusterView([view for view in views if view is not None]))

    async def _inspect_node(self, request: web.Request) -> web.Response:
        name = request.match_info["node"]
        unread = self._cluster.unreadable.get(name, "")
        view = inspect.view_node(self._cluster.ledger, name, unread)
        if view is None:
            return problem(404, f"node {name[:253]!r} has no GPUs shared by memory")
        return answer(inspect.ClusterView([view]))
