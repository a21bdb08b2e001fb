"""Waves: many equal pods, bound in another order than created, with kubelets up or stopped."""

import random
from collections.abc import Callable, Sequence
from typing import Any

from localcluster.wait import wait_until
from localcluster.workloads import Workloads
from tests.trials import pods as make
from tests.trials.records import Records, Seen

SINGLE_UNITS = 900
SEVERAL_UNITS = 150
_WAVE_SECONDS = 240.0


def waves(kind: str, count: int, nodes: Sequence[str], per_wave: int) -> list[list[dict[str, Any]]]:
    """Describe ``count`` pods in waves, evenly over the nodes.

    Of those of several containers, one in three is spread over two cards.
    """
    gates = [{"name": make.GATE}]
    described = []
    for place in range(count):
        name, node = f"{kind}-{place:04}", nodes[place % len(nodes)]
        if kind == "single":
            made = make.single(name, SINGLE_UNITS, node=node, schedulingGates=gates)
        else:
            cards = 2 if place // len(nodes) % 3 == 2 else 1
            made = make.several(name, SEVERAL_UNITS, cards, node=node, schedulingGates=gates)
        described.append(made)
    return [described[start : start + per_wave] for start in range(0, count, per_wave)]


def run_wave(
    workloads: Workloads,
    records: Records,
    wave: Sequence[dict[str, Any]],
    nodes: Sequence[str],
    *,
    stopped: bool,
    rng: random.Random,
) -> list[Seen]:
    """Create a wave and bind it in a shuffled order; return the pods once all run or failed.

    With ``stopped`` the kubelets are stopped meanwhile, and get all pods at once.
    """
    cluster = workloads.cluster
    names = [str(each["metadata"]["name"]) for each in wave]
    workloads.create(*wave)
    order = names[::-1]
    if rng.random() < 0.5:
        rng.shuffle(order)
    if stopped:
        for node in nodes:
            cluster.stop(f"kubelet-{node}")
    with cluster.api() as api:
        for name in order:
            path = f"/api/v1/namespaces/default/pods/{name}"
            body = {"spec": {"schedulingGates": None}}
            api.request("PATCH", path, body, content_type="application/merge-patch+json")
    if stopped:
        _wait(records, names, "bound", lambda seen: bool(seen.node))
        for node in nodes:
            cluster.start(f"kubelet-{node}")
    _wait(records, names, "Running or Failed", lambda seen: seen.phase in {"Running", "Failed"})
    return [seen for name in names if (seen := records.named(name)) is not None]


def _wait(records: Records, names: Sequence[str], what: str, holds: Callable[[Seen], bool]) -> None:
    def missing() -> str | None:
        late = [name for name in names if (seen := records.named(name)) is None or not holds(seen)]
        return f"{len(late)} are not, {late[0]} among them" if late else None

    text = f"{len(names)} pods to be {what}"
    wait_until(text, missing, seconds=_WAVE_SECONDS, interval=0.5)
