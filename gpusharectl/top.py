"""``gpushare top``: what pods use of GPUs, next to what they requested."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import click
import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from gpushare.annotations import inventory
from gpushare.contract import (
    ANNOTATION_INVENTORY,
    METRIC_OTHERS_USED,
    METRIC_POD_ASKED,
    METRIC_POD_LIMIT,
    METRIC_POD_SM,
    METRIC_POD_USED,
)
from gpushare.errors import ApiError, RecordError
from gpushare.kube.client import Kube
from gpushare.objects.model import Node
from gpushare.text.amounts import free_gib, needed_gib
from gpushare.text.printable import printable
from gpusharectl.reach import extender
from gpusharectl.reach.at_once import each_of
from gpusharectl.reach.options import Target, asks_a_cluster
from gpusharectl.reach.plugin_pages import is_plugin, plugin_page
from gpusharectl.reach.rights import Lacking
from gpusharectl.reach.samples import Samples
from gpusharectl.terminal.exits import No
from gpusharectl.terminal.output import output, show_document
from gpusharectl.terminal.renamed import RenamedChoice

FORMAT_VERSION: Final = 1
HOW: Final = (
    "add the component process-memory (plugin.processMemory: true); it lets the plugin see the "
    "host's processes"
)
SEE_PAGE: Final = (
    "`gpushare page -n NAMESPACE` shows what the pods of one namespace use, with the address in "
    "GPUSHARE_SERVER that your administrator can give you."
)


class PodRow(msgspec.Struct, frozen=True, rename="camel"):
    """A pod on a GPU, all its containers together; None is what is not known.

    The driver keeps ``limit_mib``, if it limits every container; ``sm_percent`` is how much of the
    GPU's multiprocessors the pod uses.
    """

    namespace: str
    pod: str
    node: str
    card: str
    uuid: str
    used_mib: int | None
    asked_mib: int
    limit_mib: int | None
    sm_percent: int | None

    @property
    def over_mib(self) -> int:
        return max(0, (self.used_mib or 0) - self.asked_mib)


class CardRow(msgspec.Struct, frozen=True, rename="camel"):
    """A GPU: what its pods use, and other processes by kind; None if unknown."""

    node: str
    card: str
    uuid: str
    size_mib: int
    pods_used_mib: int | None
    pods_asked_mib: int
    host_used_mib: int | None
    ended_pods_used_mib: int | None
    unknown_used_mib: int | None

    @property
    def over_mib(self) -> int:
        return max(0, (self.pods_used_mib or 0) - self.pods_asked_mib)


class _Pod(NamedTuple):
    """A pod on a GPU."""

    namespace: str
    pod: str
    card: str
    uuid: str


class Unmeasured(msgspec.Struct, frozen=True):
    node: str
    why: str


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements of plugins, by node."""

    pages: Mapping[str, Samples]
    without: tuple[Unmeasured, ...]


def is_measured(page: Samples) -> bool:
    """Return true if the plugin of this page measures the use of a GPU."""
    return bool(page.of(METRIC_OTHERS_USED) or page.of(METRIC_POD_ASKED))


def pod_rows(pages: Mapping[str, Samples]) -> list[PodRow]:
    """Return every pod on each of its GPUs, the largest excess over its request first."""
    rows = []
    for node, page in pages.items():
        asked = _by_pod(page, METRIC_POD_ASKED)
        used = _by_pod(page, METRIC_POD_USED)
        limits = _by_pod(page, METRIC_POD_LIMIT)
        sm = _by_pod(page, METRIC_POD_SM)
        for key, containers in asked.items():
            # What a pod has outside of its running containers has no limit.
            limited = {name: mib for name, mib in containers.items() if name and mib}
            rows.append(
                PodRow(
                    key.namespace,
                    key.pod,
                    node,
                    key.card,
                    key.uuid,
                    _sum(used[key], containers),
                    round(sum(containers.values())),
                    _sum(limits[key], limited) if limited else None,
                    _sum(sm[key], sm[key]) if sm[key] else None,
                )
            )
    return sorted(rows, key=lambda r: (-r.over_mib, -(r.used_mib or 0), r.namespace, r.pod))


def _by_pod(page: Samples, metric: str) -> dict[_Pod, dict[str, float]]:
    """Return the values of a metric by container, by pod and GPU."""
    found: dict[_Pod, dict[str, float]] = defaultdict(dict)
    for sample in page.of(metric):
        get = sample.labels.get
        key = _Pod(get("namespace", ""), get("pod", ""), get("card", ""), get("uuid", ""))
        found[key][get("container", "")] = sample.value
    return found


def _sum(values: Mapping[str, float], containers: Collection[str]) -> int | None:
    """Return the sum of all these containers; None if one has no value."""
    known = [values[name] for name in containers if name in values]
    return round(sum(known)) if len(known) == len(containers) else None


def card_rows(pages: Mapping[str, Samples], nodes: Iterable[Node]) -> list[CardRow]:
    """Return every GPU of the nodes that measure, the largest excess first."""
    by_card: dict[tuple[str, str], list[PodRow]] = defaultdict(list)
    for row in pod_rows(pages):
        by_card[row.node, row.uuid].append(row)
    rows = []
    for node in nodes:
        page = pages.get(node.name)
        if page is None:
            continue
        others = {
            (sample.labels.get("uuid", ""), sample.labels.get("by", "")): sample.value
            for sample in page.of(METRIC_OTHERS_USED)
        }
        for index, uuid, size in _cards(node):
            on_card = by_card[node.name, uuid]
            known = [row.used_mib for row in on_card if row.used_mib is not None]
            rows.append(
                CardRow(
                    node.name,
                    str(index),
                    uuid,
                    size,
                    sum(known) if len(known) == len(on_card) else None,
                    sum(row.asked_mib for row in on_card),
                    *(_whole(others.get((uuid, by))) for by in ("host", "ended-pod", "unknown")),
                )
            )
    return sorted(rows, key=lambda r: (-r.over_mib, -(r.pods_used_mib or 0), r.node, r.card))


def _cards(node: Node) -> list[tuple[int, str, int]]:
    try:
        found = inventory.decode(node.annotations.get(ANNOTATION_INVENTORY, ""))
    except RecordError:
        return []
    return [(card.index, card.uuid, card.memory_mib) for card in found.cards]


def _whole(amount: float | None) -> int | None:
    return None if amount is None else round(amount)


@click.command()
@click.argument("what", type=RenamedChoice(["pods", "gpus"], was={"cards": "gpus"}), default="pods")
@output()
@asks_a_cluster
async def top(target: Target, what: Literal["pods", "gpus"], output: str) -> None:
    """Show what pods use of GPUs, next to what they requested.

    Only nodes whose plugin runs with --process-memory are measured, and GPUs whose driver limits
    memory. Needs the right to list nodes and, in gpushare's own namespace, to list pods and to get
    pods/proxy.
    """
    async with target.connect() as kube:
        try:
            nodes = await extender.all_nodes(kube)
            measured = await measure(kube, target.system, nodes)
        except Lacking as err:
            text = f"top reads from the nodes of the whole cluster, and {err.short}. {SEE_PAGE}"
            raise ApiError(text, code=err.code) from err
    rows = pod_rows(measured.pages) if what == "pods" else card_rows(measured.pages, nodes)
    if output == "text":
        show(rows, measured, Console(highlight=False, markup=False, emoji=False))
    else:
        key = "pods" if what == "pods" else "cards"
        whole = {"version": FORMAT_VERSION, key: rows, "notMeasured": measured.without}
        show_document(whole, output)
    if not measured.pages:
        raise No("no node reports memory use: enable the component process-memory")


async def measure(kube: Kube, system: str, nodes: Iterable[Node]) -> Measured:
    """Get the pages of all plugins. ApiError if the pods cannot be listed."""
    pods = await extender.all_pods(kube, system)
    plugins = {pod.node: pod for pod in pods if is_plugin(pod) and pod.node}

    async def ask(node: str) -> Samples | str:
        try:
            page = await plugin_page(kube, system, plugins[node].metadata.name, "/metrics")
            return Samples(page.decode(errors="replace"))
        except (ApiError, RecordError) as err:
            return str(err)

    answers = await each_of(plugins, ask)
    pages: dict[str, Samples] = {}
    without = [
        Unmeasured(node.name, "no pod of the plugin runs there")
        for node in nodes
        if ANNOTATION_INVENTORY in node.annotations and node.name not in plugins
    ]
    for name, answer in answers.items():
        if isinstance(answer, str):
            without.append(Unmeasured(name, answer))
        elif is_measured(answer):
            pages[name] = answer
        else:
            without.append(Unmeasured(name, f"the plugin runs without --process-memory: {HOW}"))
    return Measured(pages, tuple(sorted(without, key=lambda each: each.node)))


def show(rows: Sequence[PodRow | CardRow], measured: Measured, console: Console) -> None:
    """Print a table of the rows, and the nodes without measurements."""
    if rows:
        console.print(_table(rows))
    elif measured.pages:
        console.print("No pod uses a share on the measured nodes.")
    by_why: dict[str, list[str]] = defaultdict(list)
    for each in measured.without:
        by_why[each.why].append(each.node)
    for why, names in by_why.items():
        text = f"Not measured on {', '.join(names)}: {why}."
        console.print(printable(text), soft_wrap=True, markup=False)


def _table(rows: Sequence[PodRow | CardRow]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    names = "POD NODE GPU", "USED, REQUESTED, OVER, LIMIT, SM"
    if isinstance(rows[0], CardRow):
        names = "NODE GPU", "SIZE, PODS USE, REQUESTED, OVER, HOST, ENDED PODS, UNKNOWN"
    for name in names[0].split():
        table.add_column(name, overflow="fold")
    for name in names[1].split(", "):
        table.add_column(name, justify="right")
    for row in rows:
        style = "red" if row.over_mib else None
        table.add_row(*map(printable, _cells(row)), style=style)
    return table


def _cells(row: PodRow | CardRow) -> list[str]:
    over = needed_gib(row.over_mib) if row.over_mib else ""
    if isinstance(row, PodRow):
        name = f"{row.namespace}/{row.pod}"
        limit = "-" if row.limit_mib is None else needed_gib(row.limit_mib)
        sm = "-" if row.sm_percent is None else f"{row.sm_percent} %"
        used = [_text(row.used_mib), needed_gib(row.asked_mib), over]
        return [name, row.node, row.card, *used, limit, sm]
    others = (row.host_used_mib, row.ended_pods_used_mib, row.unknown_used_mib)
    used = [_text(row.pods_used_mib), needed_gib(row.pods_asked_mib), over]
    return [row.node, row.card, free_gib(row.size_mib), *used, *map(_text, others)]


def _text(amount: int | None) -> str:
    return "not known" if amount is None else needed_gib(amount)
