"""One cluster with a node of each setup, and the matrix's cells on it.

The device plugins run without containers, with the environment that a node's NVIDIA runtime gives.
"""

import http.client
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Final

import yaml

from gpushare.contract import ENV_VISIBLE_DEVICES
from localcluster.errors import ApiError
from localcluster.gpushare import CARD_MIB, Binding, Gpushare, plugin_of
from localcluster.nvml import CardSpec, read_minors
from localcluster.specs import NodeSpec, Runtime
from localcluster.toolkit import Setup, has_handlers
from localcluster.wait import wait_until
from localcluster.workloads import RESOURCE, Workloads, container, is_running, pod
from tests.cluster.bringup import of_image
from tests.trials.cells import (
    CLASSES,
    JUDGED,
    Cell,
    End,
    Ending,
    Kind,
    ending_of,
    ephemeral_container,
    pod_of,
)

CARDS: Final = 3
SECONDS: Final = 150.0
SETTLED_SECONDS: Final = 5.0
_PROBE: Final = "asks-the-runtime"
_NO_CARD: Final = "void"
_CLASSES: Final = "--runtime-classes=nvidia,nvidia-cdi,nvidia-legacy"
# What an administrator sets on such nodes (docs/install.md); nothing where `auto` must find it.
_ARGUMENTS: Final[Mapping[Setup, tuple[str, ...]]] = {
    Setup.OPERATOR: (_CLASSES,),
    Setup.CDI: (_CLASSES,),
    Setup.NONE: (_CLASSES,),
}
# Without NVIDIA's runtime, only late binding can give a card.
_LATE_ONLY: Final = frozenset({Setup.CDI, Setup.NONE})


@dataclass(frozen=True)
class Matrix:
    """A cluster with a node of each setup, or several."""

    gpushare: Gpushare
    nodes: Mapping[str, NodeSpec]

    @property
    def workloads(self) -> Workloads:
        return Workloads(self.gpushare.cluster)

    def start_plugins(self, binding: Binding) -> None:
        """Run every node's plugin with this binding; return once all nodes offer cards.

        Without NVIDIA's runtime the binding is late, since only that can give a card.
        """
        running = {each.name for each in self.gpushare.cluster.processes()}
        visible = self._visible()
        for node, spec in self.nodes.items():
            if plugin_of(node) in running:
                self.gpushare.cluster.stop(plugin_of(node))
            words = _ARGUMENTS.get(spec.setup, ())
            chosen: Binding = "late" if spec.setup in _LATE_ONLY else binding
            # Of a large card, more units of one MiB than a kubelet takes in one message.
            spare = max(0, max(card.mem_mib for card in spec.cards) - CARD_MIB)
            words = (*words, f"--reserved={spare}")
            env = {ENV_VISIBLE_DEVICES: visible.get(node, _NO_CARD)}
            self.gpushare.start_plugin(node, *words, binding=chosen, env=env)
        wait_until("cards on every node", self._without_cards, seconds=60)

    def _without_cards(self) -> str | None:
        with self.gpushare.cluster.api() as api:
            items = api.get("/api/v1/nodes")["items"]
        units = {each["metadata"]["name"]: each["status"]["allocatable"] for each in items}
        waiting = [node for node in self.nodes if units[node].get(RESOURCE, "0") == "0"]
        return ", ".join(waiting) or None

    def cells(self, binding: Binding) -> list[Cell]:
        """Return all cells that there are with this binding."""
        specs = self.nodes.values()
        able = [each for each in specs if binding != "early" or each.setup not in _LATE_ONLY]
        found = product(able, Kind)
        return [Cell(n.name, kind, name) for n, kind in found for name in CLASSES[n.setup]]

    def play(
        self, cells: Sequence[Cell], must_run: Collection[Cell] = frozenset()
    ) -> dict[Cell, Ending]:
        """Run the pods of these cells, all at once; return how each cell ended. No pod is left.

        The kubelet tries a refused container again, so a refusal of a cell of `must_run` is no
        end: raise DeadlineError with its reason if such a cell does not run in time.
        """
        by_node = {node: self._cards(node) for node in self.nodes}
        refused = {}
        for number, cell in enumerate(cells):
            cards = sorted(by_node[cell.node])
            # Never the first of several, which a container with any card would have.
            others = cards[1:] or cards
            described = pod_of(cell, others[number % len(others)])
            if why := _refusal(self.workloads.create, described):
                refused[cell] = Ending(End.REFUSED, why)
        waits_for_pod = {cell for cell in cells if cell.kind == Kind.EPHEMERAL} - refused.keys()
        found: dict[Cell, Ending] = {}

        def undecided() -> str | None:
            pods = {each["metadata"]["name"]: each for each in self.workloads.all()}
            for cell in [cell for cell in waits_for_pod if is_running(pods.get(cell.pod))]:
                waits_for_pod.remove(cell)
                if why := _refusal(self._add_ephemeral, cell.pod):
                    refused[cell] = Ending(End.REFUSED, why)
            tried = [cell for cell in cells if cell not in refused]
            ran = {cell for cell, ending in found.items() if ending.ran}
            found.update(self._endings([c for c in tried if c not in ran], pods, by_node))
            found.update(refused)
            waiting = [
                f"{cell.pod}: {ending.end} {ending.why}"
                for cell, ending in found.items()
                if ending.end == End.WAITING or (cell in must_run and not ending.ran)
            ]
            return f"{len(waiting)} wait, {waiting[0]} among them" if waiting else None

        wait_until(f"{len(cells)} cells to end", undecided, seconds=SECONDS, interval=1.0)
        # Containers that were refused are retried, and might end in another way.
        settled = time.monotonic() + SETTLED_SECONDS

        def unsettled() -> str | None:
            told = undecided()
            return told or (None if time.monotonic() > settled else "still settling")

        wait_until("the cells to settle", unsettled, seconds=SECONDS, interval=1.0)
        self.workloads.delete_all(seconds=120)
        return {cell: found[cell] for cell in cells}

    def _visible(self) -> dict[str, str]:
        """Return what NVIDIA's runtime makes of `all` in the environment, by node."""
        nodes = [node for node, spec in self.nodes.items() if has_handlers(spec.setup)]
        described = [
            pod(
                f"{_PROBE}-{node}",
                node=node,
                containers=[container("main", None, {ENV_VISIBLE_DEVICES: "all"})],
                runtimeClassName="nvidia",
                terminationGracePeriodSeconds=1,
            )
            for node in nodes
        ]
        names = [each["metadata"]["name"] for each in described]
        self.workloads.run(*described, seconds=60)
        found = [self.workloads.environment(name)[ENV_VISIBLE_DEVICES] for name in names]
        self.workloads.delete(*names, grace=1)
        return dict(zip(nodes, found, strict=True))

    def _cards(self, node: str) -> dict[str, int]:
        return read_minors(self.gpushare.cluster.node_folder(node) / "nvml" / "state")

    def _endings(
        self,
        cells: Sequence[Cell],
        pods: Mapping[str, dict[str, Any]],
        by_node: Mapping[str, Mapping[str, int]],
    ) -> Iterator[tuple[Cell, Ending]]:
        warnings = self._warnings()
        for cell in cells:
            described = pods.get(cell.pod)
            if described is None:
                yield cell, Ending(End.REFUSED, "its pod was evicted")
                continue
            cards = None
            if printed := self.workloads.printed_by(described, JUDGED):
                minors = by_node[cell.node].items()
                cards = [uuid for uuid, minor in minors if minor in printed.minors]
            uid = described["metadata"]["uid"]
            yield cell, ending_of(described, cards, warnings.get(uid, ()))

    def _warnings(self) -> dict[str, list[str]]:
        """Return the warnings of pods by uid: names may repeat."""
        with self.gpushare.cluster.api() as api:
            items = api.get("/api/v1/namespaces/default/events?fieldSelector=type%3DWarning")[
                "items"
            ]
        found: dict[str, list[str]] = {}
        for each in items:
            uid = each["involvedObject"].get("uid", "")
            found.setdefault(uid, []).append(str(each.get("message")))
        return found

    def _add_ephemeral(self, name: str) -> None:
        path = f"/api/v1/namespaces/default/pods/{name}/ephemeralcontainers"
        body = {"spec": {"ephemeralContainers": [ephemeral_container()]}}
        kind = "application/strategic-merge-patch+json"
        with self.gpushare.cluster.api() as api:
            api.request("PATCH", path, body, content_type=kind)


def setup_node(setup: Setup, runtime: Runtime = "containerd-2") -> NodeSpec:
    """Describe the node of a setup, named after it; its cards have UUIDs as a driver's."""
    number = list(Setup).index(setup)
    cards = (
        CardSpec(f"GPU-{number:08x}-0000-4000-8000-{card:012x}", mem_mib=CARD_MIB)
        for card in range(CARDS)
    )
    name = setup.value.replace(".", "-")
    return NodeSpec(name, {}, tuple(cards), setup=setup, runtime=runtime)


@contextmanager
def matrix_cluster(image: Path, nodes: Sequence[NodeSpec], *, name: str) -> Iterator[Matrix]:
    """Bring up these nodes with the extender of gpushare's image and no plugin; remove them after.

    The policies allow for nodes whose default is NVIDIA's runtime. The nodes must lack the label
    by which the DaemonSet would run plugins.
    """
    with of_image(image, *nodes, name=name) as gpushare:
        classes = sorted({each for names in CLASSES.values() for each in names if each})
        described = [
            {
                "apiVersion": "node.k8s.io/v1",
                "kind": "RuntimeClass",
                "metadata": {"name": each},
                "handler": each,
            }
            for each in classes
        ]
        gpushare.cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(described))
        gpushare.install()
        yield Matrix(gpushare, {each.name: each for each in nodes})


def table(endings: Mapping[Cell, Ending]) -> str:
    """Return the cells as a table in Markdown: a row for each node and RuntimeClass."""
    rows = dict.fromkeys((cell.node, cell.runtime_class) for cell in endings)
    head = ["setup", "RuntimeClass", *Kind]
    lines = [_row(head), _row(["---"] * len(head))]
    for node, name in rows:
        ends = [endings.get(Cell(node, kind, name)) for kind in Kind]
        shown = [_shown(end, kind) for end, kind in zip(ends, Kind, strict=True)]
        lines.append(_row([node, name or "none", *shown]))
    return "\n".join(lines)


def wrong(endings: Mapping[Cell, Ending]) -> list[str]:
    """Return a line for each cell that is wrong."""
    return [
        f"{cell.pod}: {ending.end} {ending.why}".strip()
        for cell, ending in endings.items()
        if not ending.is_right(cell.kind)
    ]


def _refusal(call: Callable[..., None], *arguments: Any) -> str:
    """Return why a policy of the API server rejects the call; empty if it does not."""
    try:
        call(*arguments)
    except ApiError as problem:
        if problem.status not in {http.client.FORBIDDEN, http.client.UNPROCESSABLE_ENTITY}:
            raise
        return str(problem)
    return ""


def _shown(ending: Ending | None, kind: Kind) -> str:
    if ending is None:
        return ""
    return str(ending.end) if ending.is_right(kind) else f"**{ending.end}**"


def _row(words: Sequence[str]) -> str:
    return f"| {' | '.join(words)} |"
