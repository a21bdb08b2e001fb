"""What pods really use on the nodes that viewers look at, read from the device plugins.

Nothing is read without a viewer. A node is read at most every FRESH_SECONDS, few at a time, with
rights that the extender has: it lists pods, and the plugins serve their metrics to everyone.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from typing import Final

import aiohttp
import msgspec
from aiohttp import web
from yarl import URL

from extender.page.rules import UNREADABLE, NodeUsage, of_namespace, read_usage
from extender.server.limits import answer
from extender.server.paths import NAMESPACE_USAGE, USAGE
from gpushare.clock import Clock
from gpushare.contract import ANNOTATION_MIRROR, EXTENDER_PREFIX
from gpushare.errors import ApiError
from gpushare.kube.client import Kube
from gpushare.kube.lists import list_all
from gpushare.kube.paths import pods
from gpushare.objects.model import OwnerReference
from gpushare.process.time_slices import Turns

log = logging.getLogger(__name__)

MOST_NODES: Final = 40  # in one answer: more rows than a screen shows
FRESH_SECONDS: Final = 10.0
AT_ONCE: Final = 8
READ_SECONDS: Final = 3.0
ANSWER_SECONDS: Final = 3.0  # then without the nodes that are still being read
MOST_BYTES: Final = 512 * 1024
PLUGIN: Final = "gpushare-deviceplugin"
PORT: Final = 29767
NO_PLUGIN: Final = "not known: no device plugin runs on this node"
NOT_LISTED: Final = "not known: the API server does not list the node's device plugin"
SILENT: Final = "not known: the device plugin does not answer"
FAILED: Final = "not known: the extender failed, see its log"


class _Port(msgspec.Struct, rename="camel"):
    name: str = ""
    container_port: int = PORT


class _Container(msgspec.Struct):
    ports: list[_Port] | None = None


class _Spec(msgspec.Struct):
    containers: list[_Container] = []


class _Status(msgspec.Struct):
    phase: str = ""
    ip: str = msgspec.field(name="podIP", default="")


class _Metadata(msgspec.Struct, rename="camel"):
    annotations: dict[str, str] | None = None
    owner_references: list[OwnerReference] | None = None
    deletion_timestamp: str | None = None


class _Plugin(msgspec.Struct):
    metadata: _Metadata
    spec: _Spec
    status: _Status

    @property
    def runs(self) -> bool:
        """Return whether the pod runs as part of a DaemonSet; no kubelet reported it as its own."""
        meta = self.metadata
        owners = meta.owner_references or ()
        return (
            self.status.phase == "Running"
            and meta.deletion_timestamp is None
            and ANNOTATION_MIRROR not in (meta.annotations or {})
            and any(owner.kind == "DaemonSet" and owner.controller for owner in owners)
        )

    @property
    def url(self) -> URL:
        listed = [port for each in self.spec.containers for port in each.ports or ()]
        ports = [port.container_port for port in listed if port.name == "http"]
        port = ports[0] if ports else PORT
        return URL.build(scheme="http", host=self.status.ip, port=port, path="/metrics")


def is_pod_address(address: str) -> bool:
    """Return whether an address can be that of a pod on another machine."""
    try:
        ip = ip_address(address)
    except ValueError:
        return False
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    return not (ip.is_loopback or ip.is_link_local or ip.is_multicast or ip.is_unspecified)


class UsageAnswer(msgspec.Struct):
    nodes: dict[str, NodeUsage]


@dataclass(frozen=True, slots=True)
class _Reading:
    at: float
    usage: NodeUsage


class PluginUsage:
    """``namespace`` is that of the plugins, ``may_contact`` checks their addresses.

    A node's kubelet writes its pods' addresses: one that an attacker controls can have the extender
    send a GET to another address, but not to loopback or a cloud's link-local metadata service.
    """

    def __init__(
        self,
        kube: Kube,
        namespace: str,
        clock: Clock,
        may_contact: Callable[[str], bool] = is_pod_address,
    ) -> None:
        self._kube, self._namespace, self._clock = kube, namespace, clock
        self._may_contact = may_contact
        self._readings: dict[str, asyncio.Task[_Reading]] = {}
        self._turns, self._parsing = asyncio.Semaphore(AT_ONCE), Turns()

    async def of(self, nodes: Sequence[str], known: Collection[str]) -> UsageAnswer:
        """Return the use on these nodes, of which it reads only ``known`` ones.

        A node that is still being read is left out; a later request gets it.
        """
        self._forget(self._clock.monotonic())
        names = [name for name in dict.fromkeys(nodes[:MOST_NODES]) if name in known]
        tasks = {name: self._reading(name) for name in names}
        if tasks:
            await asyncio.wait(tasks.values(), timeout=ANSWER_SECONDS)
        return UsageAnswer(
            {name: task.result().usage for name, task in tasks.items() if task.done()}
        )

    def _forget(self, now: float) -> None:
        self._readings = {
            name: task
            for name, task in self._readings.items()
            if not task.done() or now - task.result().at < FRESH_SECONDS
        }

    def _reading(self, node: str) -> asyncio.Task[_Reading]:
        task = self._readings.get(node)
        if task is None:
            task = self._readings[node] = asyncio.create_task(self._ask(node))
        return task

    async def _ask(self, node: str) -> _Reading:
        """Return the use on a node, or why it is not known: the other nodes are answered too."""
        try:
            found = await self._measured(node)
        except Exception:
            log.exception("the use of a node cannot be read", extra={"node": node})
            found = NodeUsage(why=FAILED)
        return _Reading(self._clock.monotonic(), found)

    async def _measured(self, node: str) -> NodeUsage:
        async with self._turns:
            try:
                async with asyncio.timeout(READ_SECONDS):
                    plugin = await self._plugin(node)
                    if plugin is None:
                        return NodeUsage(why=NO_PLUGIN)
                    page = await _get(plugin.url)
            except ApiError:
                return NodeUsage(why=NOT_LISTED)
            except (aiohttp.ClientError, TimeoutError, ValueError, OSError):
                return NodeUsage(why=SILENT)
        if page is None:
            return NodeUsage(why=UNREADABLE)
        return await self._parsing.run(read_usage(page))

    async def _plugin(self, node: str) -> _Plugin | None:
        collection = pods(
            namespace=self._namespace,
            label_selector=f"app.kubernetes.io/name={PLUGIN}",
            field_selector=f"spec.nodeName={node}",
        )
        found = await list_all(self._kube, collection, _Plugin)
        usable = (each for each in found if each.runs and self._may_contact(each.status.ip))
        return next(usable, None)


async def _get(url: URL) -> str | None:
    """Return a page; None if it is too large."""
    async with (
        aiohttp.ClientSession(raise_for_status=True) as session,
        session.get(url, allow_redirects=False) as response,
    ):
        body = bytearray()
        async for part in response.content.iter_chunked(2**16):
            body += part
            if len(body) > MOST_BYTES:
                return None
        return body.decode(errors="replace")


def add_usage(app: web.Application, usage: PluginUsage, known: Collection[str]) -> None:
    """Add the page's question about the nodes that it shows, for all pods or one namespace's."""

    async def show(request: web.Request) -> web.Response:
        found = await usage.of(request.query.getall("node", []), known)
        only = request.match_info.get("namespace", "")
        if only:
            nodes = found.nodes.items()
            found = UsageAnswer({name: of_namespace(each, only) for name, each in nodes})
        return answer(found)

    path = f"{EXTENDER_PREFIX}/{USAGE}"
    app.router.add_get(path, show, name=USAGE)
    app.router.add_get(f"{path}/{{namespace}}", show, name=NAMESPACE_USAGE)
