"""Gangs of the tests and trials: their pods, how far they are, and what their containers have."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from gpushare.contract import (
    ANNOTATION_GANG_ZONE,
    ANNOTATION_KUEUE_COUNT,
    ENV_CONTAINER_UNITS,
    GATE_ADMISSION,
    LABEL_CARD_COUNT,
    LABEL_GANG,
    LABEL_GANG_MINIMUM,
    LABEL_KUEUE_GROUP,
    LABEL_POD_GROUP,
)
from gpushare.groups.model import Source
from localcluster.gpushare import Gpushare
from localcluster.wait import wait_until
from localcluster.workloads import Workloads, pod
from tests.cluster.expect import RESOURCE, env_is_card_on_record
from tests.cluster.gated import COMPONENTS
from tests.trials.stage import paper_gpu_node

UNITS: Final = 16  # of each GPU
ZONE: Final = "gangs/zone"
STAGE: Final = "gangs/stage"


@contextmanager
def gpu_nodes(gpushare: Gpushare, zones: Mapping[str, str], cards: int = 2) -> Iterator[None]:
    """Add nodes without kubelets, with ``cards`` empty GPUs each; ``zones`` are by node.

    Before Kubernetes 1.32 the extender may patch pods, as gangs need it there.
    """
    if not gpushare.cluster.version.retries_rejected_pods:
        gpushare.cluster.kubectl("apply", "-f", str(COMPONENTS / "gates" / "access.yaml"))
    made = (
        paper_gpu_node(name, cards, UNITS, labels={ZONE: zone, STAGE: "true"})
        for name, zone in zones.items()
    )
    gpushare.cluster.add_paper_nodes(*made)
    try:
        yield
    finally:
        pods = Workloads(gpushare.cluster)
        pods.delete(*(each["metadata"]["name"] for each in pods.all()), grace=0)
        gpushare.cluster.remove_paper_nodes(*zones)


def on_stage(name: str, units: int | None, **spec: Any) -> dict[str, Any]:
    """Describe a pod for the nodes of `gpu_nodes`.

    Without a kubelet its deletion takes effect at once.
    """
    made = pod(name, units, terminationGracePeriodSeconds=0, **spec)
    made["spec"]["nodeSelector"] = {STAGE: "true"} | spec.get("nodeSelector", {})
    return made


def member(
    gang: str,
    number: int,
    minimum: int,
    units: int | None,
    *,
    source: Source = Source.LABELS,
    in_one_zone: bool = False,
    is_gated: bool = False,
    **spec: Any,
) -> dict[str, Any]:
    """Describe a member for the nodes of `gpu_nodes`."""
    made = on_stage(f"{gang}-{number}", units, **spec)
    return in_gang(made, gang, minimum, source=source, in_one_zone=in_one_zone, is_gated=is_gated)


def in_gang(
    made: dict[str, Any],
    gang: str,
    minimum: int,
    *,
    source: Source = Source.LABELS,
    in_one_zone: bool = False,
    is_gated: bool = False,
) -> dict[str, Any]:
    """Make a pod a member of a gang; return it."""
    labels: dict[str, str] = made["metadata"].setdefault("labels", {})
    annotations: dict[str, str] = made["metadata"].setdefault("annotations", {})
    match source:
        case Source.LABELS:
            labels |= {LABEL_GANG: gang, LABEL_GANG_MINIMUM: str(minimum)}
        case Source.POD_GROUP:
            labels[LABEL_POD_GROUP] = gang
        case Source.KUEUE:
            labels[LABEL_KUEUE_GROUP] = gang
            annotations[ANNOTATION_KUEUE_COUNT] = str(minimum)
        case Source.NATIVE:
            made["spec"]["schedulingGroup"] = {"podGroupName": gang}
    if in_one_zone:
        annotations[ANNOTATION_GANG_ZONE] = ZONE
    if is_gated:
        made["spec"]["schedulingGates"] = [{"name": GATE_ADMISSION}]
    return made


def gang_on_kubelets(
    gang: str, units: Sequence[int], *, cards: int, is_gated: bool
) -> list[dict[str, Any]]:
    """Describe a gang for nodes with kubelets, all of whose members start together.

    ``units`` are by member, of each of its ``cards`` GPUs.
    """
    made = []
    for name, amount in zip(names(gang, len(units)), units, strict=True):
        metadata = {"labels": {LABEL_CARD_COUNT: str(cards)}}
        described = pod(name, cards * amount, metadata=metadata, terminationGracePeriodSeconds=1)
        made.append(in_gang(described, gang, len(units), is_gated=is_gated))
    return made


def containers_have_what_was_decided(pods: Workloads, gang: Sequence[Mapping[str, Any]]) -> None:
    """Check that each container of a gang has the decided GPUs, and as much as was requested."""
    found = env_is_card_on_record(pods, *(each["metadata"]["name"] for each in gang))
    for each in gang:
        name, labels = each["metadata"]["name"], each["metadata"]["labels"]
        assert len(set(found[name].split(","))) == int(labels[LABEL_CARD_COUNT]), found[name]
        (container,) = each["spec"]["containers"]
        amount = container["resources"]["limits"][RESOURCE]
        assert pods.environment(name)[ENV_CONTAINER_UNITS] == amount, name


def names(gang: str, count: int) -> list[str]:
    return [f"{gang}-{number}" for number in range(count)]


def bound(pods: Workloads) -> dict[str, str]:
    """Return the nodes of the pods that have one."""
    found = {each["metadata"]["name"]: each["spec"].get("nodeName") for each in pods.all()}
    return {name: node for name, node in found.items() if node}


def members_bound(pods: Workloads) -> Counter[str]:
    """Count the bound members of each gang."""
    return Counter(name.rpartition("-")[0] for name in bound(pods))


def wait_members(pods: Workloads, seconds: float = 40, **wanted: int) -> None:
    """Wait until the gangs have so many members bound, and no other pod is."""

    def different() -> str | None:
        found = members_bound(pods)
        return None if found == Counter(wanted) else str(dict(found))

    wait_until(f"bound members {wanted}", different, seconds=seconds)


def wait_one_whole(pods: Workloads, gangs: Sequence[str], size: int) -> tuple[str, str]:
    """Wait until all members of one of two gangs are bound, and no other pod is.

    Return that gang and the other one.
    """

    def different() -> str | None:
        found = members_bound(pods)
        return None if found in [{gang: size} for gang in gangs] else str(dict(found))

    wait_until("one gang to be whole", different, seconds=30)
    (whole,) = members_bound(pods)
    (other,) = set(gangs) - {whole}
    return whole, other
