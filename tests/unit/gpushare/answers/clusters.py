"""Random clusters and requests."""

import msgspec
from hypothesis import strategies as st

from gpushare.contract import (
    ANNOTATION_CARD_POLICY,
    ANNOTATION_CARDS,
    ANNOTATION_CORDONED_CARDS,
    ANNOTATION_NODE_POLICY,
    LABEL_CARD_COUNT,
)
from gpushare.ledger.accounts import Reserve
from gpushare.objects.model import Container, Node, Pod, Resources
from gpushare.objects.scheduling import Taint
from gpusharectl.reach.listed_cluster import ListedCluster
from tests.builders import annotated, node, pod

CPU = 4
POLICIES = ("binpack", "spread")


def asks(units: int, count: int, cpu: int = 1, priority: int = 0, policy: str = "") -> Pod:
    amounts = {"aliyun.com/gpu-mem": str(units * count), "cpu": str(cpu)}
    labels = {LABEL_CARD_COUNT: str(count)}
    container = Container("main", Resources(amounts, amounts))
    policies = {ANNOTATION_NODE_POLICY: policy, ANNOTATION_CARD_POLICY: policy} if policy else {}
    made = pod("asks", labels=labels, containers=[container], annotations=policies)
    return msgspec.structs.replace(made, spec=msgspec.structs.replace(made.spec, priority=priority))


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[Node], list[Pod], list[Reserve]]:
    nodes, pods, reserves = [], [], []
    for place in range(draw(st.integers(1, 3))):
        sizes = draw(st.lists(st.integers(1, 16), min_size=1, max_size=3))
        cards = st.integers(0, len(sizes) - 1)
        made = node(f"n{place}", *sizes, unhealthy=draw(st.lists(cards, max_size=1)))
        closed = ",".join(f"GPU-{card}" for card in draw(st.lists(cards, max_size=1)))
        made = annotated(made, {ANNOTATION_CORDONED_CARDS: closed} if closed else {})
        status = msgspec.structs.replace(
            made.status, allocatable={**made.allocatable, "cpu": str(CPU)}
        )
        taints = draw(st.sampled_from([None, None, (Taint("k", "NoSchedule"),)]))
        spec = msgspec.structs.replace(made.spec, taints=taints)
        nodes.append(msgspec.structs.replace(made, status=status, spec=spec))
        for number in range(draw(st.integers(0, 4))):
            on = sorted(draw(st.sets(cards, max_size=2)))
            units = draw(st.integers(1, 6)) * max(1, len(on))
            cpu = {"cpu": str(draw(st.integers(0, 2)))}
            amounts = {"aliyun.com/gpu-mem": str(units), **cpu}
            held = pod(
                f"p{place}-{number}",
                node=f"n{place}",
                containers=[Container("main", Resources(amounts, amounts))],
                annotations={ANNOTATION_CARDS: ",".join(f"GPU-{card}" for card in on)},
            )
            pods.append(held)
        if draw(st.booleans()):
            units = draw(st.integers(1, 6))
            reserves.append(Reserve("r", "x", "r", f"n{place}", (f"GPU-{draw(cards)}",), units, 0))
    return nodes, pods, reserves


requests = st.builds(
    asks,
    st.integers(1, 18),
    st.integers(1, 3),
    st.integers(0, CPU),
    st.sampled_from([0, 5]),
    st.sampled_from(["", *POLICIES]),
)


def on(name: str, units: int, where: str) -> Pod:
    return pod(name, units, node=where, annotations={ANNOTATION_CARDS: "GPU-0"})


def cluster_of(found, without=()) -> ListedCluster:
    nodes, pods, reserves = found
    cluster = ListedCluster(nodes, [each for each in pods if each.metadata.name not in without])
    for each in reserves:
        cluster.ledger.reserve(each)
    return cluster
