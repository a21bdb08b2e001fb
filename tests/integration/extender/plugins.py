"""The metrics of device plugins that measure what pods really use, as an extender reads them."""

import json
from typing import Any, Final

from aiohttp import web

from gpushare.ledger.ledger import Ledger

_OTHERS: Final = "gpushare_deviceplugin_others_used_mib"
SM_PERCENT: Final = 42  # of each pod
PARTS: Final = (0.35, 0.62, 0.81, 0.93)  # that pods really use of what they hold


class Plugins:
    """A plugin on each node, at its own loopback address; also lists their pods as a Kube.

    ``measures``: they run with --process-memory. ``host_mib`` is what processes outside of pods
    use, by the GPU's UUID; those on ``hidden`` GPUs may belong to any pod. ``missing`` are nodes
    without a plugin, ``broken`` those whose metrics cannot be read, ``asked`` those whose pods were
    listed. ``metadata`` is added to that of all plugins' pods.
    """

    def __init__(self) -> None:
        self.measures, self.port = True, 0
        self.asked: list[str] = []
        self.host_mib: dict[str, int] = {}
        self.hidden: set[str] = set()
        self.missing: set[str] = set()
        self.broken: set[str] = set()
        self.metadata: dict[str, Any] = {}
        self._runner: web.AppRunner | None = None
        self._nodes: list[str] = []

    async def open(self, ledger: Ledger) -> None:
        self._ledger = ledger
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "0.0.0.0", self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def list_page(self, collection: Any, **_: Any) -> bytes:
        """Return the plugin's pod on the node that the field selector names."""
        assert collection.path == "/api/v1/namespaces/gpushare-system/pods"
        node = collection.field_selector.removeprefix("spec.nodeName=")
        self.asked.append(node)
        if node not in self._nodes:
            self._nodes.append(node)
        place = self._nodes.index(node)
        ports = [{"name": "http", "containerPort": self.port}]
        status = {"phase": "Running", "podIP": f"127.1.{place // 250}.{place % 250 + 1}"}
        owners = [{"kind": "DaemonSet", "controller": True}]
        metadata = {"ownerReferences": owners, **self.metadata}
        pod = {"metadata": metadata, "spec": {"containers": [{"ports": ports}]}, "status": status}
        items = [] if node in self.missing else [pod]
        return json.dumps({"items": items, "metadata": {}}).encode()

    async def _metrics(self, request: web.Request) -> web.Response:
        high, low = map(int, request.host.partition(":")[0].split(".")[2:])
        node = self._nodes[250 * high + low - 1]
        lines = ["# TYPE gpushare_deviceplugin_calls_total counter"]
        if node in self.broken:
            lines.append("gpushare_deviceplugin_pod_used_mib{,\t=1#=} 1")
        if self.measures:
            lines += [
                f'gpushare_deviceplugin_pod_{kind}{{card="0",container="main",'
                f'namespace="{share.namespace}",pod="{share.name}",uuid="{uuid}"}} {amount}'
                for share in self._ledger.shares(node)
                for uuid in share.cards
                for kind, amount in (
                    ("asked_mib", share.units),
                    ("used_mib", really_uses(share)),
                    ("sm_percent", SM_PERCENT),
                )
                if kind == "asked_mib" or uuid not in self.hidden
            ]
            account = self._ledger.account(node)
            lines += [
                f'{_OTHERS}{{by="{by}",card="0",uuid="{card.uuid}"}} {amount}'
                for card in (account.inventory.cards if account is not None else ())
                for by, amount in self._others(card.uuid).items()
            ]
        return web.Response(text="\n".join(lines) + "\n")

    def _others(self, uuid: str) -> dict[str, int]:
        unknown = 2048 if uuid in self.hidden else 0
        return {"host": self.host_mib.get(uuid, 0), "ended-pod": 0, "unknown": unknown}


def really_uses(share: Any) -> int:
    """Return MiB by the pod's name; some pods use more than they hold."""
    if share.name.startswith("sd-xl") and sum(map(ord, share.name)) % 5 == 0:
        return int(share.units * 1.2)
    return int(share.units * PARTS[sum(map(ord, share.name)) % len(PARTS)])
