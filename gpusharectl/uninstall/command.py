"""``gpushare uninstall``: remove everything of gpushare from a cluster."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import click
import msgspec

from gpushare.annotations.inventory import of_node
from gpushare.contract import ANNOTATION_CORDONED_CARDS, RESOURCE_MEMORY
from gpushare.errors import ApiError, Conflict, NotFound, RecordError
from gpushare.kube.client import Kube
from gpushare.objects.model import Node, ObjectMeta, Pod
from gpushare.text.counted import counted
from gpushare.text.listed import listed
from gpushare.text.manual import manual
from gpusharectl.reach.extender import all_nodes, all_pods
from gpusharectl.reach.options import Target, asks_a_cluster
from gpusharectl.reach.polling import POLL_SECONDS, poll
from gpusharectl.terminal.exits import No
from gpusharectl.terminal.say import say
from gpusharectl.terminal.whole_number import WholeNumber
from gpusharectl.uninstall import gated, rules
from gpusharectl.uninstall.lines import NAMED, Installed, not_installed, plan
from gpusharectl.uninstall.rules import ObjectKind

DRAIN_SECONDS: Final = 300
# For 5 minutes after a plugin's end the kubelet still writes its resource on the Node, and then
# once more, with zeros (kubernetes/pkg/kubelet/cm/devicemanager).
KUBELET_SECONDS: Final = 420.0
POLICY_SECONDS: Final = 60.0
QUIET_SECONDS: Final = 45.0  # the kubelet writes its Node every 10 s
_NEVER: Final = frozenset({"default", "kube-system", "kube-public", "kube-node-lease"})


@dataclass(frozen=True, slots=True)
class Wishes:
    """The options; seconds are time limits."""

    drain: bool
    drain_seconds: int | None
    clean_seconds: int
    keep_namespace: bool
    labels: bool
    no_wait: bool
    dry_run: bool


@click.command("uninstall")
@click.option(
    "--drain", is_flag=True, help="Evict the pods that use shares, as their budgets allow."
)
@click.option(
    "--drain-seconds",
    type=WholeNumber(min=0),
    show_default=str(DRAIN_SECONDS),
    help="With --drain: time limit.",
)
@click.option(
    "--clean-seconds",
    type=WholeNumber(min=0),
    default=120,
    show_default=True,
    help="Time limit for cleaning the nodes.",
)
@click.option("--keep-namespace", is_flag=True, help="Keep the namespace.")
@click.option("--labels", is_flag=True, help="Remove the label gpushare from the nodes, too.")
@click.option(
    "--no-wait",
    is_flag=True,
    help="Do not wait until the kubelets forget aliyun.com/gpu-mem: a 0 stays on the nodes.",
)
@click.option("--dry-run", is_flag=True, help="Only print what would be removed.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@asks_a_cluster
async def command(target: Target, yes: bool, **given: Any) -> None:
    """Remove gpushare from the cluster.

    Fails while pods use shares. After a failure, run it again. It cannot remove the extender from
    kube-scheduler's configuration.
    """
    wishes = Wishes(**given)
    if wishes.drain_seconds is not None and not wishes.drain:
        raise click.UsageError("--drain-seconds: only with --drain")
    async with target.connect() as kube:
        await _Uninstall(kube, target.system, wishes).run(asks=not yes)


class _Uninstall:
    def __init__(self, kube: Kube, system: str, wishes: Wishes) -> None:
        self._kube, self._system, self._wishes = kube, system, wishes

    async def run(self, *, asks: bool) -> None:
        """Raises No if pods use shares, or if something is not removed in time."""
        nodes = rules.marked(await all_nodes(self._kube))
        pods = await all_pods(self._kube)
        others = rules.of_older(nodes, pods, self._system)
        kinds = (*rules.POLICIES, *rules.PROGRAMS, *rules.REST)
        ours = [(kind, each) for kind in kinds for each in await self._ours(kind)]
        names = [(kind, each.name) for kind, each in ours]
        releases = await self._releases(each for _, each in ours)
        held = rules.gated(pods)
        found = Installed(names, releases, await self._namespace(), nodes, others, held)
        if not found.is_there(labels=self._wishes.labels):
            keeps = self._wishes.keep_namespace or self._system in _NEVER
            for line in not_installed(found, self._system, keeps_namespace=keeps):
                say(line)
            return
        if others:
            there = f"{counted(len(others), 'node')} still with Aliyun gpushare"
            raise No(
                f"{there}: {listed(others, NAMED)}. "
                f"{RESOURCE_MEMORY} there is its own, and evicted pods would return at once. "
                f"Migrate these nodes first, or roll back all: {manual('migrate.md')}. Nothing was "
                "changed"
            )
        holders, waiting = rules.holders(pods), rules.waiting(pods)
        self._say_plan(found, holders, waiting)
        if holders and not self._wishes.drain:
            raise No(
                f"{counted(len(holders), 'pod')} with shares: {_named(holders)}. Delete them, or "
                "use --drain"
            )
        if self._wishes.dry_run:
            return
        if asks:
            click.confirm("Continue?", abort=True)
        if holders:
            await self._drain(nodes)
        await self._remove(
            nodes, releases, waits=not self._wishes.no_wait and bool(found.objects or nodes)
        )
        waiting = rules.waiting(await all_pods(self._kube))
        if waiting:
            say(
                f"pods that request {RESOURCE_MEMORY} are no longer scheduled; "
                f"{counted(len(waiting), 'Pending pod')}: {_named(waiting)}",
                err=True,
            )

    async def _namespace(self) -> str:
        """Return the namespace if it exists and is to be deleted."""
        if self._wishes.keep_namespace or self._system in _NEVER:
            return ""
        is_there = await self._read(f"/api/v1/namespaces/{self._system}") is not None
        return self._system if is_there else ""

    def _say_plan(self, found: Installed, holders: Sequence[Pod], waiting: Sequence[Pod]) -> None:
        say("To be removed:")
        if self._wishes.drain:
            for pod in holders:
                say(f"  pod {pod.key} on {pod.node} (evicted)")
        for line in plan(found, labels=self._wishes.labels):
            say(line)
        if waiting:
            say(f"Pending pods that request a share: {_named(waiting)}")

    async def _remove(self, nodes: Sequence[Node], releases: Sequence[str], *, waits: bool) -> None:
        for kind in rules.POLICIES:
            await self._delete_all(kind)
        has_cleaner = await self._start_cleaner(nodes)
        for kind in rules.PROGRAMS:
            await self._delete_all(kind)
        try:
            # The extender would place pods that are released before it ends.
            await self._until_ended(rules.EXTENDER, rules.SCHEDULER)
        finally:
            await self._release_gated()
        await self._until_ended(rules.PLUGIN)
        if has_cleaner:
            await self._clean()
        for node in rules.marked(await all_nodes(self._kube)):
            await self._clear(node)
        # Before the last objects that name the release, so that another run finds it.
        for name in releases:
            await self._delete(rules.SECRETS.path(self._system, name))
        for kind in rules.REST:
            await self._delete_all(kind)
        await self._release_gated()  # what an API server gated that knew the policy for longer
        if waits:
            await self._until_forgotten()
        if not self._wishes.keep_namespace and self._system not in _NEVER:
            path = f"/api/v1/namespaces/{self._system}"
            await self._delete(path)
            await self._until(
                f"namespace {self._system} to end", lambda: self._still_there(path), 120
            )
        say("gpushare is removed.")

    async def _release_gated(self) -> None:
        await self._until("gated pods to be released", lambda: gated.release(self._kube), 60)

    async def _drain(self, nodes: Sequence[Node]) -> None:
        """Cordon the GPUs, and evict the pods that use them; No with those left in time."""
        for node in nodes:
            await self._cordon(node)
        why: dict[str, str] = {}

        async def drained() -> bool:
            nonlocal why
            holders = rules.holders(await all_pods(self._kube))
            why = {pod.key: why.get(pod.key, "it is terminating") for pod in holders}
            for pod in holders:
                if pod.metadata.deletion_timestamp is None:
                    why[pod.key] = await self._evict(pod) or why[pod.key]
            return not holders

        given = self._wishes.drain_seconds
        seconds = DRAIN_SECONDS if given is None else given
        if not await poll(drained, seconds):
            left = "; ".join(f"{key}: {text}" for key, text in sorted(why.items())[:NAMED])
            raise No(
                f"{len(why)} pods still run after {seconds} s: {left}. Nothing "
                "else was removed; the GPUs are cordoned, so run this again, or run `gpushare "
                "uncordon-gpu --all` for each node"
            )

    async def _cordon(self, node: Node) -> None:
        """Cordon a node's GPUs, or an evicted pod's successor would use them at once."""
        try:
            found = of_node(node, unit_mib=1)
        except RecordError:
            return  # such a node takes no new pods
        if found is not None:
            uuids = ",".join(card.uuid for card in found.cards)
            patch = {"metadata": {"annotations": {ANNOTATION_CORDONED_CARDS: uuids}}}
            await self._kube.patch_node(node.name, patch, status=False)

    async def _evict(self, pod: Pod) -> str:
        """Evict a pod; return why it cannot be evicted, else nothing."""
        try:
            await self._kube.evict_pod(pod, any_version=True)
        except (NotFound, Conflict):
            return ""  # it is deleted, perhaps made again: the next poll shows it
        except ApiError as err:
            if err.code != HTTPStatus.TOO_MANY_REQUESTS:
                raise
            return str(err)
        return ""

    async def _start_cleaner(self, nodes: Sequence[Node]) -> bool:
        """Create the cleaner before the plugin is deleted; return true if one exists."""
        path = rules.DAEMON_SETS.path(self._system)
        if await self._read(f"{path}/{rules.CLEANER}") is not None:
            return True
        plugin = await self._read(f"{path}/{rules.PLUGIN}")
        if plugin is None or not nodes:
            return False
        made = rules.cleaner(plugin, [node.name for node in nodes])
        await self._kube.request("POST", path, body=made)
        return True

    async def _clean(self) -> None:
        """Wait until the nodes are clean, and delete the cleaner."""
        path = rules.DAEMON_SETS.path(self._system, rules.CLEANER)

        async def unclean() -> str:
            found = await self._read(path)
            status = found["status"] if found else {}
            wanted, ready = status.get("desiredNumberScheduled"), status.get("numberReady", 0)
            is_seen = found and status.get("observedGeneration") == found["metadata"]["generation"]
            return "" if is_seen and ready == wanted else f"{ready} of {wanted or 'all'} nodes are"

        await self._until("the nodes to be clean", unclean, self._wishes.clean_seconds)
        await self._delete(path)
        await self._until_ended(rules.CLEANER)

    async def _clear(self, node: Node) -> None:
        # The totals first: with them and no inventory a node looks like one of Aliyun gpushare.
        if patch := rules.totals(node):
            await self._patch(node, patch, status=True)
        if patch := rules.traces(node, labels=self._wishes.labels):
            await self._patch(node, patch, status=False)

    async def _patch(self, node: Node, patch: dict[str, Any], *, status: bool) -> None:
        """Patch a node; the API server still applies a deleted policy for some seconds."""

        async def denied() -> str:
            try:
                await self._kube.patch_node(node.name, patch, status=status)
            except ApiError as err:
                if err.code == HTTPStatus.UNPROCESSABLE_ENTITY and gated.POLICY in str(err):
                    return str(err)
                raise
            return ""

        await self._until("the policies to be gone", denied, POLICY_SECONDS)

    async def _until_forgotten(self) -> None:
        """Remove the totals from the nodes until no kubelet writes them any more."""
        say(
            f"Waiting until the kubelets forget {RESOURCE_MEMORY}, 5 minutes after the plugin's "
            "end (--no-wait leaves a 0 on the nodes)"
        )
        end = time.monotonic() + KUBELET_SECONDS
        quiet = time.monotonic() + QUIET_SECONDS
        while time.monotonic() < quiet:
            for node in await all_nodes(self._kube):
                if rules.totals(node):
                    await self._clear(node)
                    quiet = time.monotonic() + QUIET_SECONDS
            if time.monotonic() >= end:
                raise No(f"a kubelet still writes {RESOURCE_MEMORY} on its node: run this again")
            await asyncio.sleep(POLL_SECONDS)

    async def _releases(self, ours: Iterable[ObjectMeta]) -> list[str]:
        """Return the names of the Secrets of the Helm release that installed gpushare, if any."""
        releases = {(each.annotations or {}).get(rules.RELEASE, "") for each in ours} - {""}
        path = rules.SECRETS.path(self._system)
        return [
            each.name
            for release in sorted(releases)
            for each in await self._listed(path, f"owner=helm,name={release}")
        ]

    async def _ours(self, kind: ObjectKind) -> list[ObjectMeta]:
        """Return gpushare's objects of a kind; none if the API server does not know the kind."""
        try:
            found = await self._listed(kind.path(self._system))
        except NotFound:
            return []
        return [each for each in found if kind.is_ours(each.name)]

    async def _listed(self, path: str, selector: str = "") -> list[ObjectMeta]:
        """Return the metadata of a list of any kind."""
        query = [("labelSelector", selector)] if selector else []
        body = await self._kube.request("GET", path, query=query)
        return [each.metadata for each in msgspec.json.decode(body, type=_List).items or ()]

    async def _delete_all(self, kind: ObjectKind) -> None:
        for each in await self._ours(kind):
            await self._delete(kind.path(self._system, each.name))
            say(f"deleted: {kind.name} {each.name}")

    async def _delete(self, path: str) -> None:
        with suppress(NotFound):
            await self._kube.request("DELETE", path, body={"propagationPolicy": "Background"})

    async def _read(self, path: str) -> Any:
        try:
            return msgspec.json.decode(await self._kube.request("GET", path))
        except NotFound:
            return None

    async def _still_there(self, path: str) -> str:
        return "" if await self._read(path) is None else "it still exists"

    async def _until_ended(self, *programs: str) -> None:
        """Wait until no pod of these programs is left."""
        selector = f"app.kubernetes.io/name in ({','.join(programs)})"
        path = f"/api/v1/namespaces/{self._system}/pods"

        async def left() -> str:
            return ", ".join(each.name for each in await self._listed(path, selector))

        await self._until("gpushare's pods to end", left, 120)

    async def _until(
        self, what: str, left: Callable[[], Coroutine[Any, Any, str]], seconds: float
    ) -> None:
        """Wait until nothing is ``left``; after ``seconds`` No with what is."""
        last = ""

        async def done() -> bool:
            nonlocal last
            last = await left()
            return not last

        if not await poll(done, seconds):
            raise No(f"waited {seconds:g} s for {what}: {last}. Run this again to continue")


class _Object(msgspec.Struct):
    metadata: ObjectMeta


class _List(msgspec.Struct):
    items: list[_Object] | None = None


def _named(pods: Iterable[Pod]) -> str:
    return listed([pod.key for pod in pods], NAMED)
