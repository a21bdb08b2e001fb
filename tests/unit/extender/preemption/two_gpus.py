"""Stages with one or two GPUs that others use, and what is claimed on them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from extender.metrics.counters import PREEMPTIONS_IN_VAIN
from extender.settings.configuration import PreemptionSettings
from tests.unit.extender.preemption.stage import ENABLED, Stage

TWO_GPUS: Mapping[str, tuple[int, ...]] = {"n": (16, 16)}


@contextmanager
def staged(
    nodes: Mapping[str, tuple[int, ...]] = TWO_GPUS, settings: PreemptionSettings | None = ENABLED
) -> Iterator[Stage]:
    made = Stage(nodes, settings)
    try:
        yield made
    finally:
        made.end()


def fill(stage: Stage, priority: int = 0) -> None:
    """Use 10 of 16 units of each GPU: 12 are left, and no GPU has 10."""
    stage.put_bound("a", 10, "GPU-0", priority=priority)
    stage.put_bound("b", 10, "GPU-1", priority=priority)


def fill_in_units(stage: Stage, priority: int = 0) -> None:
    """Use a GPU of 16 units by as many pods; kube-scheduler evicts none of them."""
    for number in range(16):
        stage.put_bound(f"v-{number:02}", 1, priority=priority)
    stage.preempts = False


def claimed(stage: Stage) -> int:
    return sum(len(each.slots) for each in stage.claims())


def in_vain() -> float:
    return PREEMPTIONS_IN_VAIN._value.get()
