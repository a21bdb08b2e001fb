"""``gpushare uninstall``: takes gpushare out of a cluster, and leaves nothing of it."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import click
import msgspec

from gpushare.annotations.inventory import of_node
from gpushare.contract import ANNOTATION_CORDONED_CARDS, RESOURCE_MEMORY
from gpushare.errors import ApiError, Conflict, NotFound, RecordError
from gpushare.kube.client import Kube
from gpushare.objects.model import Node, Pod
from gpushare.text.counted import counted
from gpusharectl.reach.extender import all_nodes, all_pods
from gpusharectl.reach.options import Target, asks_a_cluster
from gpusharectl.terminal.exits import No
from gpusharectl.uninstall import rules
from gpusharectl.uninstall.rules import Kind

DRAIN_SECONDS: Final = 300
_LOOK_SECONDS: Final = 0.5
# Over 5 minutes from a plugin's end the kubelet still writes its resource on the Node, and once
# more, with zeros, when they are over (kubernetes/pkg/kubelet/cm/devicemanager).
KUBELET_SECONDS: Final = 420.0
QUIET_SECONDS: Final = 45.0  # it writes its Node every 10 s
_NEVER: Final = frozenset({"default", "kube-system", "kube-public", "kube-node-lease"})
_NAMED: Final = 20


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the user has said; seconds are limits of waiting."""

    drains: bool
    drain_seconds: int
    cleaning_seconds: int
    keeps_namespace: bool
    takes_labels: bool
    waits: bool
    is_dry: bool


@click.command("uninstall")
@click.option(
    "--drain", is_flag=True, help="Evict the pods that hold shares, as their budgets allow."
)
@click.option(
    "--drain-seconds",
    type=click.IntRange(min=0),
    show_default=str(DRAIN_SECONDS),
    help="With --drain: for how long that is tried.",
)
@click.option(
    "--clean-seconds",
    type=click.IntRange(min=0),
    default=120,
    show_default=True,
    help="For how long nodes may take to be clean.",
)
@click.option("--keep-namespace", is_flag=True, help="Leave the namespace itself.")
@click.option("--labels", is_flag=True, help="Take the label gpushare off the nodes too.")
@click.option(
    "--no-wait",
    is_flag=True,
    help="Do not wait for the kubelets to forget aliyun.com/gpu-mem: a 0 stays on the nodes.",
)
@click.option("--dry-run", is_flag=True, help="Print what would go, and change nothing.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@asks_a_cluster
async def command(target: Target, yes: bool, **given: Any) -> None:
    """Take gpushare out of the cluster.

    Refuses while pods hold shares. Run again after a failure, it finishes the work. What it cannot
    do is to take the extender out of kube-scheduler's configuration: docs/uninstall.md.
    """
    seconds = given["drain_seconds"]
    if seconds is not None and not given["drain"]:
        raise click.UsageError("--drain-seconds: only with --drain")
    wishes = Wishes(
        drains=given["drain"],
        drain_seconds=DRAIN_SECONDS if seconds is None else seconds,
        cleaning_seconds=given["clean_seconds"],
        keeps_namespace=given["keep_namespace"],
        takes_labels=given["labels"],
        waits=not given["no_wait"],
        is_dry=given["dry_run"],
    )
    async with target.connect() as kube:
        await _Uninstall(kube, target.system, wishes).run(asks=not yes)


class _Uninstall:
    def __init__(self, kube: Kube, system: str, wishes: Wishes) -> None:
        self._kube = kube
        self._system = system
        self._wishes = wishes

    async def run(self, *, asks: bool) -> None:
        """Raises No where pods are in the way, or where something would not go in time."""
        found = await self._objects()
        nodes = rules.marked(await all_nodes(self._kube))
        pods = await all_pods(self._kube)
        if others := rules.of_older(nodes, pods, self._system):
            raise No(
                f"{counted(len(others), 'node')} still with the older gpushare: "
                f"{_shortened(others)}. {RESOURCE_MEMORY} there is its own, and pods would come "
                "back as fast as they are evicted. Bring these nodes over first, or go back with "
                "all: docs/migrate.md. Nothing was changed"
            )
        holders, waiting = rules.holders(pods), rules.waiting(pods)
        self._say_plan(found, nodes, holders, waiting)
        if holders and not self._wishes.drains:
            raise No(
                f"shares are held by {counted(len(holders), 'pod')}: {_named(holders)}. "
                f"Delete them, or say --drain"
            )
        if self._wishes.is_dry:
            return
        if asks:
            click.confirm("Go on?", abort=True)
        if holders:
            await self._drain(nodes)
        await self._remove(nodes, waits=self._wishes.waits and bool(found or nodes))
        waiting = rules.waiting(await all_pods(self._kube))
        if waiting:
            click.echo(
                f"nothing places pods that ask for {RESOURCE_MEMORY} any more; still waiting: "
                f"{counted(len(waiting), 'pod')}, {_named(waiting)}",
                err=True,
            )

    async def _objects(self) -> list[tuple[Kind, str]]:
        kinds = (*rules.POLICIES, *rules.PROGRAMS, *rules.REST)
        return [(kind, name) for kind in kinds for name in await self._names(kind)]

    def _say_plan(
        self,
        found: Sequence[tuple[Kind, str]],
        nodes: Sequence[Node],
        holders: Sequence[Pod],
        waiting: Sequence[Pod],
    ) -> None:
        click.echo("What goes:")
        if self._wishes.drains:
            for pod in holders:
                click.echo(f"  evicted: pod {pod.key} on {pod.node}")
        for kind, name in found:
            click.echo(f"  {kind.name} {name}")
        for node in nodes:
            gone = [*rules.traces(node, labels=self._wishes.takes_labels).get("metadata", {})]
            gone += [*rules.totals(node).get("status", {})]
            click.echo(f"  node {node.name}: files, {', '.join(gone) or 'nothing on the Node'}")
        if not self._wishes.keeps_namespace and self._system not in _NEVER:
            click.echo(f"  Namespace {self._system}, with whatever else is in it")
        if waiting:
            click.echo(f"Pods that wait for a share: {_named(waiting)}")

    async def _remove(self, nodes: Sequence[Node], *, waits: bool) -> None:
        for kind in rules.POLICIES:
            await self._delete_all(kind)
        has_cleaner = await self._start_cleaner(nodes)
        for kind in rules.PROGRAMS:
            await self._delete_all(kind)
        await self._until_ended(rules.PLUGIN, rules.EXTENDER, rules.SCHEDULER)
        if has_cleaner:
            await self._clean()
        for node in rules.marked(await all_nodes(self._kube)):
            await self._take_off(node)
        releases = await self._releases()
        for kind in rules.REST:
            await self._delete_all(kind)
        for path in releases:
            await self._delete(path)
        if waits:
            await self._until_forgotten()
        if not self._wishes.keeps_namespace and self._system not in _NEVER:
            path = f"/api/v1/namespaces/{self._system}"
            await self._delete(path)
            await self._until(f"namespace {self._system} to end", lambda: self._is_gone(path), 120)
        click.echo("gpushare is removed.")

    async def _drain(self, nodes: Sequence[Node]) -> None:
        """Evict what holds shares, and let nothing new come; No with what could not go in time."""
        for node in nodes:
            await self._cordon(node)
        why: dict[str, str] = {}
        end = time.monotonic() + self._wishes.drain_seconds
        while holders := rules.holders(await all_pods(self._kube)):
            why = {pod.key: why.get(pod.key, "it takes its time to end") for pod in holders}
            for pod in holders:
                if pod.metadata.deletion_timestamp is None:
                    why[pod.key] = await self._evict(pod) or why[pod.key]
            if time.monotonic() >= end:
                left = "; ".join(f"{key}: {text}" for key, text in sorted(why.items())[:_NAMED])
                raise No(
                    f"{len(holders)} pods are still there after {self._wishes.drain_seconds} s: "
                    f"{left}. Nothing else was removed; the cards are cordoned, so run this again, "
                    f"or `gpushare uncordon-card --all` on each node"
                )
            await asyncio.sleep(_LOOK_SECONDS)

    async def _cordon(self, node: Node) -> None:
        """Let a node's cards take nothing new: an evicted pod's successor would come right back."""
        try:
            found = of_node(node, unit_mib=1)
        except RecordError:
            return  # such a node takes nothing new
        if found is not None:
            uuids = ",".join(card.uuid for card in found.cards)
            patch = {"metadata": {"annotations": {ANNOTATION_CORDONED_CARDS: uuids}}}
            await self._kube.patch_node(node.name, patch, status=False)

    async def _evict(self, pod: Pod) -> str:
        """Say why a pod does not go; empty if it goes."""
        try:
            await self._kube.evict_pod(pod)
        except (NotFound, Conflict):
            return ""  # it is gone, or has changed: the next look tells
        except ApiError as err:
            if err.code != HTTPStatus.TOO_MANY_REQUESTS:
                raise
            return str(err)
        return ""

    async def _start_cleaner(self, nodes: Sequence[Node]) -> bool:
        """Whether one is there, of this run or of one before: it is made before the plugin goes."""
        path = f"{rules.DAEMON_SETS.path(self._system)}"
        if await self._read(f"{path}/{rules.CLEANER}") is not None:
            return True
        plugin = await self._read(f"{path}/{rules.PLUGIN}")
        if plugin is None or not nodes:
            return False
        made = rules.cleaner(plugin, [node.name for node in nodes])
        await self._kube.request("POST", path, body=made)
        return True

    async def _clean(self) -> None:
        """Return when every node that a plugin was on is clean, and the cleaner gone."""
        path = rules.DAEMON_SETS.path(self._system, rules.CLEANER)

        async def unclean() -> str:
            found = await self._read(path)
            status = found["status"] if found else {}
            wanted, ready = status.get("desiredNumberScheduled"), status.get("numberReady", 0)
            is_seen = found and status.get("observedGeneration") == found["metadata"]["generation"]
            return "" if is_seen and ready == wanted else f"{ready} of {wanted or 'all'} nodes are"

        await self._until("the nodes to be clean", unclean, self._wishes.cleaning_seconds)
        await self._delete(path)
        await self._until_ended(rules.CLEANER)

    async def _take_off(self, node: Node) -> None:
        # The totals first: with them and no inventory a node looks as the older gpushare leaves it.
        patch = rules.totals(node)
        if patch:
            await self._kube.patch_node(node.name, patch, status=True)
        patch = rules.traces(node, labels=self._wishes.takes_labels)
        if patch:
            await self._kube.patch_node(node.name, patch, status=False)

    async def _until_forgotten(self) -> None:
        """Take the totals off the nodes until no kubelet writes them any more."""
        click.echo(
            f"Waiting for the kubelets to forget {RESOURCE_MEMORY}: they do 5 minutes after the "
            f"plugin's end (--no-wait leaves a 0 on the nodes)"
        )
        end = time.monotonic() + KUBELET_SECONDS
        quiet = time.monotonic() + QUIET_SECONDS
        while time.monotonic() < quiet:
            for node in await all_nodes(self._kube):
                if rules.totals(node):
                    await self._take_off(node)
                    quiet = time.monotonic() + QUIET_SECONDS
            if time.monotonic() >= end:
                raise No(f"a kubelet still writes {RESOURCE_MEMORY} on its node: run this again")
            await asyncio.sleep(_LOOK_SECONDS)

    async def _releases(self) -> list[str]:
        """Paths of what Helm keeps of its release, where it was Helm that installed this."""
        if self._system in _NEVER:
            return []  # others' releases are there too
        selector = [("labelSelector", "owner=helm")]
        path = f"/api/v1/namespaces/{self._system}/secrets"
        found = _items(await self._kube.request("GET", path, query=selector))
        return [f"{path}/{each}" for each in found]

    async def _names(self, kind: Kind) -> list[str]:
        """Those of a kind that are ours; none where the API server does not know the kind."""
        try:
            body = await self._kube.request("GET", kind.path(self._system))
        except NotFound:
            return []
        return [name for name in _items(body) if kind.is_ours(name)]

    async def _delete_all(self, kind: Kind) -> None:
        for name in await self._names(kind):
            await self._delete(kind.path(self._system, name))
            click.echo(f"deleted: {kind.name} {name}")

    async def _delete(self, path: str) -> None:
        try:
            await self._kube.request("DELETE", path, body={"propagationPolicy": "Background"})
        except NotFound:
            return

    async def _read(self, path: str) -> Any:
        try:
            return msgspec.json.decode(await self._kube.request("GET", path))
        except NotFound:
            return None

    async def _is_gone(self, path: str) -> str:
        return "" if await self._read(path) is None else "it is still there"

    async def _until_ended(self, *programs: str) -> None:
        """Return when no pod of these programs is left."""
        selector = f"app.kubernetes.io/name in ({','.join(programs)})"
        path = f"/api/v1/namespaces/{self._system}/pods"

        async def left() -> str:
            query = [("labelSelector", selector)]
            return ", ".join(_items(await self._kube.request("GET", path, query=query)))

        await self._until("gpushare's pods to end", left, 120)

    async def _until(
        self, what: str, seen: Callable[[], Coroutine[Any, Any, str]], seconds: float
    ) -> None:
        """Return when ``seen`` says nothing more; No with its last word after ``seconds``."""
        end = time.monotonic() + seconds
        while last := await seen():
            if time.monotonic() >= end:
                raise No(f"waited {seconds:g} s for {what}: {last}. Run this again to go on")
            await asyncio.sleep(_LOOK_SECONDS)


class _Named(msgspec.Struct):
    name: str


class _Object(msgspec.Struct):
    metadata: _Named


class _List(msgspec.Struct):
    items: list[_Object] | None = None


def _items(body: bytes) -> list[str]:
    """The names in a list of whatever."""
    return [each.metadata.name for each in msgspec.json.decode(body, type=_List).items or ()]


def _named(pods: Iterable[Pod]) -> str:
    return _shortened([pod.key for pod in pods])


def _shortened(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
