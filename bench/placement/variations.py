"""Derives other clusters and other mixes of pods from a trace."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from bench.placement.books import Books
from bench.placement.trace import CARD, Trace, TracePod

NODES: Final = 10

WHOLE_TRACE: Final = "all nodes and pods"
TEN_NODES: Final = "ten nodes"
EQUAL: Final = "equal pods"
SMALL: Final = "pods of at most one GPU"
LARGE: Final = "half of the GPU time for pods of several GPUs"
ONLY_GPU: Final = "pods with GPU"

Vary = Callable[[Trace, int], Trace]  # an equal seed gives an equal trace


def on_few_nodes(trace: Trace, seed: int) -> Trace:
    """Return ten random nodes, and the pods with GPUs that one of them can host while it is empty.

    At least one of the nodes has as many cards as any node of the trace.
    """
    draw = random.Random(seed)  # noqa: S311 - the same each time
    most = max(node.cards for node in trace.nodes)
    first = draw.choice([node for node in trace.nodes if node.cards == most])
    rest = [node for node in trace.nodes if node is not first]
    few = replace(trace, nodes=(first, *draw.sample(rest, NODES - 1)))
    books = Books(few)
    hosted = {
        pod
        for pod in set(trace.pods)
        if any(
            node.cards >= pod.cards and books.hosts_pod(pod, i) for i, node in enumerate(few.nodes)
        )
    }
    return replace(few, pods=tuple(pod for pod in trace.pods if pod.cards and pod in hosted))


def of_one_kind(trace: Trace, _seed: int) -> Trace:
    """Return a trace whose pods all equal the most frequent one that requests a part of a GPU."""
    shares = Counter(pod for pod in trace.pods if pod.cards and pod.units < CARD)
    return replace(trace, pods=tuple(kind for kind, _ in shares.most_common(1)))


def with_gpu(trace: Trace, _seed: int) -> Trace:
    """Return a trace without the pods that need no GPU."""
    return replace(trace, pods=tuple(pod for pod in trace.pods if pod.cards))


def at_most_one_gpu(trace: Trace, _seed: int) -> Trace:
    """Return a trace without the pods of several GPUs."""
    return replace(trace, pods=tuple(pod for pod in trace.pods if pod.cards == 1))


def half_for_several_gpus(trace: Trace, _seed: int) -> Trace:
    """Return a trace that repeats the pods of several GPUs, so that they request about half.

    The trace must have some.
    """
    single = [pod for pod in trace.pods if pod.cards == 1]
    several = of_several_gpus(trace)
    times = max(1, round(_size(single) / _size(several)))
    return replace(trace, pods=(*single, *several * times))


def of_several_gpus(trace: Trace) -> list[TracePod]:
    return [pod for pod in trace.pods if pod.cards > 1]


def _size(pods: Sequence[TracePod]) -> int:
    return sum(pod.size for pod in pods)


VARIATIONS: Final[dict[str, Vary]] = {
    WHOLE_TRACE: lambda trace, _: trace,
    TEN_NODES: on_few_nodes,
    EQUAL: of_one_kind,
    SMALL: at_most_one_gpu,
    LARGE: half_for_several_gpus,
    ONLY_GPU: with_gpu,
}
