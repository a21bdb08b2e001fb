"""A released gang whose nodes go bad before kube-scheduler asks about it gets other nodes."""

import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

from gpushare.annotations import inventory
from gpushare.cards.model import Card, Health, Inventory
from gpushare.contract import (
    ANNOTATION_CARDS,
    ANNOTATION_INVENTORY,
    ANNOTATION_SLOT,
)
from localcluster.cluster import Cluster
from localcluster.controlplane import SCHEDULER
from localcluster.gpushare import Gpushare
from localcluster.wait import wait_until
from localcluster.workloads import Workloads, pod
from tests.cluster.expect import wait_event
from tests.cluster.gangs import UNITS, gpu_nodes, member, names, wait_members

pytestmark = [pytest.mark.cluster, pytest.mark.every_version]

NODES: Final = ("repair-1", "repair-2", "repair-3")
MEMBERS: Final = 4  # of which each needs a whole GPU; a node has two
CPU: Final = "32"  # of a node


@pytest.fixture
def pods(gpushare: Gpushare) -> Iterator[Workloads]:
    with gpu_nodes(gpushare, dict.fromkeys(NODES, "a")):
        yield Workloads(gpushare.cluster)


def cordon(gpushare: Gpushare, node: str) -> None:
    gpushare.cluster.kubectl("cordon", node)


def taint(gpushare: Gpushare, node: str) -> None:
    gpushare.cluster.kubectl("taint", "node", node, "test/taint=:NoSchedule")


def fail_a_gpu(gpushare: Gpushare, node: str) -> None:
    """Report both GPUs, of which the first one is unhealthy."""
    cards = tuple(
        Card(index, f"GPU-{node}-{index}", UNITS, health, tag=f"a{index}", minor=index)
        for index, health in enumerate((Health.UNHEALTHY, Health.HEALTHY))
    )
    text = inventory.encode(Inventory(1, cards, "0.1.0", "late"))
    written = f"{ANNOTATION_INVENTORY}={text}"
    with gpushare.unguarded():  # only the device plugin may write it
        gpushare.cluster.kubectl("annotate", "--overwrite", "node", node, written)


def take_the_cpu(gpushare: Gpushare, node: str) -> None:
    """Bind a pod of somebody else that uses all processors."""
    Workloads(gpushare.cluster).create(with_cpu(pod("filler-0", nodeName=node), CPU))


def delete(gpushare: Gpushare, node: str) -> None:
    gpushare.cluster.kubectl("delete", "node", node)


def with_cpu(described: dict[str, Any], cpu: str) -> dict[str, Any]:
    (container,) = described["spec"]["containers"]
    container.setdefault("resources", {})["requests"] = {"cpu": cpu}
    return described


@contextmanager
def stopped(cluster: Cluster, program: str) -> Iterator[None]:
    cluster.kill(program, signal.SIGSTOP)
    try:
        yield
    finally:
        cluster.kill(program, signal.SIGCONT)


def gang(size: int) -> list[dict[str, Any]]:
    made = (member("gang", each, size, UNITS, is_gated=True) for each in range(size))
    return [with_cpu(each, "1") for each in made]


def wait_slots(pods: Workloads, size: int) -> dict[str, str]:
    """Return the nodes that the extender has written into the released members."""
    found: dict[str, str] = {}

    def missing() -> str | None:
        for name in names("gang", size):
            described = pods.get(name)
            text = described["metadata"].get("annotations", {}).get(ANNOTATION_SLOT)
            if text is None or described["spec"].get("schedulingGates"):
                return f"{name} is not released"
            found[name] = json.loads(text)["node"]
        return None

    wait_until("all members to be released", missing, seconds=30)
    return found


def wait_kept(gpushare: Gpushare, units: int, lost: frozenset[str] = frozenset()) -> None:
    """Wait until so many units are kept in all, and none of them on the GPUs ``lost``."""

    def different() -> str | None:
        cards = [card for node in gpushare.inspect() for card in node["devs"]]
        kept = {card["uuid"]: card["reserved"] for card in cards if card["reserved"]}
        return None if sum(kept.values()) == units and not lost & kept.keys() else str(kept)

    wait_until(f"{units} units to be kept", different, seconds=30)


@pytest.mark.usefixtures("gates")
@pytest.mark.parametrize("fault", [cordon, taint, fail_a_gpu, take_the_cpu, delete])
def test_members_whose_node_goes_bad_are_bound_elsewhere(
    pods: Workloads,
    gpushare: Gpushare,
    fault: Callable[[Gpushare, str], None],
    figures: Callable[[str], None],
):
    with stopped(gpushare.cluster, SCHEDULER):
        pods.create(*gang(MEMBERS))
        bad = wait_slots(pods, MEMBERS)["gang-0"]
        lost = frozenset(f"GPU-{bad}-{index}" for index in range(1 if fault is fail_a_gpu else 2))
        began = time.monotonic()
        fault(gpushare, bad)
        wait_kept(gpushare, MEMBERS * UNITS, lost)
        figures(f"{fault.__name__}: other room was kept {time.monotonic() - began:.1f} s later")
    others = {"filler": 1} if fault is take_the_cpu else {}
    wait_members(pods, gang=MEMBERS, **others)
    cards = {pods.annotations(name)[ANNOTATION_CARDS] for name in names("gang", MEMBERS)}
    assert len(cards) == MEMBERS
    assert not cards & lost


@pytest.mark.usefixtures("gates")
def test_nothing_is_bound_if_there_is_no_room_elsewhere(pods: Workloads, gpushare: Gpushare):
    size = 2 * len(NODES)
    with stopped(gpushare.cluster, SCHEDULER):
        pods.create(*gang(size))
        bad = wait_slots(pods, size)["gang-0"]
        cordon(gpushare, bad)
        wait_kept(gpushare, 0)
    wait_event(pods, "gang-0", f"No room for {size} x {UNITS} MiB together: 4 fit now")
    wait_members(pods)
    gpushare.cluster.kubectl("uncordon", bad)
    wait_members(pods, gang=size)
