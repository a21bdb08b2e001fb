"""Reads the nodes and pods of a trace, or generates them with a similar mix."""

import csv
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CARD: Final = 1000  # units of every card
NODES: Final = "openb_node_list_gpu_node.csv"
PODS: Final = "openb_pod_list_{}.csv"


@dataclass(frozen=True, slots=True)
class TraceNode:
    """``cpu`` is in thousandths of a core, ``memory`` in MiB."""

    name: str
    cpu: int
    memory: int
    cards: int
    model: str


@dataclass(frozen=True, slots=True)
class TracePod:
    """What a pod requests: ``units`` of each of ``cards``, of any of ``models`` if there are some.

    The amounts are as in TraceNode; a pod without cards needs no GPU.
    """

    cpu: int
    memory: int
    cards: int = 0
    units: int = 0
    models: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        return self.cards * self.units


@dataclass(frozen=True, slots=True)
class Trace:
    name: str
    nodes: Sequence[TraceNode]
    pods: Sequence[TracePod]

    @property
    def capacity(self) -> int:
        """Return the units of all cards."""
        return CARD * sum(node.cards for node in self.nodes)


def read(folder: Path, name: str) -> Trace:
    """Read the nodes with GPUs and the pods of one variant of Alibaba's trace openb.

    The files are those of cluster-trace-gpu-v2023 in github.com/alibaba/clusterdata.
    """
    nodes = [
        TraceNode(
            row["sn"], int(row["cpu_milli"]), int(row["memory_mib"]), int(row["gpu"]), row["model"]
        )
        for row in _rows(folder / NODES)
    ]
    pods = [_pod(row) for row in _rows(folder / PODS.format(name))]
    return Trace(name, nodes, pods)


def variants(folder: Path) -> list[str]:
    """Return the names of the lists of pods in a folder."""
    before, after = PODS.split("{}")
    return sorted(path.name[len(before) : -len(after)] for path in folder.glob(PODS.format("*")))


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _pod(row: Mapping[str, str]) -> TracePod:
    models = row.get("gpu_spec") or ""
    cards = int(row["num_gpu"])
    return TracePod(
        int(row["cpu_milli"]),
        int(row["memory_mib"]),
        cards,
        int(row["gpu_milli"]) if cards else 0,
        tuple(sorted(models.split("|"))) if models else (),
    )


# Nodes by number, GPUs, cores, GiB and model, and pods by weight, GPUs, units, cores and GiB: round
# numbers with the character of a shared inference and training cluster.
_NODES: Final = (
    (90, 8, 96, 384, "large"),
    (66, 2, 104, 512, "small"),
    (20, 2, 16, 120, "old"),
    (8, 4, 32, 128, "middle"),
    (6, 8, 128, 768, "new"),
)
_PODS: Final = (
    (130, 0, 0, 8, 16), (20, 0, 0, 32, 64),
    (260, 1, 1000, 12, 40), (110, 1, 1000, 8, 32), (80, 1, 1000, 4, 16), (30, 1, 1000, 16, 64),
    (100, 1, 800, 8, 30), (40, 1, 650, 6, 24), (90, 1, 470, 8, 30), (30, 1, 470, 4, 16),
    (40, 1, 320, 4, 12), (40, 1, 230, 4, 16), (20, 1, 160, 2, 8), (10, 1, 100, 2, 4),
    (2, 2, 1000, 16, 64), (2, 4, 1000, 32, 128), (6, 8, 1000, 64, 256),
)  # fmt: skip


def generated(pods: int = 1500, seed: int = 1) -> Trace:
    """Return 190 nodes with 956 GPUs, and pods that request about as many."""
    draw = random.Random(seed)  # noqa: S311 - the same each time
    nodes = [
        TraceNode(f"{model}-{i}", cores * 1000, gib * 1024, cards, model)
        for number, cards, cores, gib, model in _NODES
        for i in range(number)
    ]
    kinds = [
        TracePod(cores * 1000, gib * 1024, cards, units) for _, cards, units, cores, gib in _PODS
    ]
    weights = [each[0] for each in _PODS]
    return Trace("generated", nodes, draw.choices(kinds, weights, k=pods))
