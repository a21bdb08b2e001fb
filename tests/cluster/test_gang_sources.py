"""Gangs on a real kube-scheduler, by whatever they are stated, with gpushare's gate or without."""

from collections.abc import Iterator
from typing import Final

import pytest

from gpushare.groups.model import Source
from localcluster.cluster import Cluster
from localcluster.gpushare import Gpushare
from localcluster.wait import wait_until
from localcluster.workloads import Workloads
from tests.cluster.expect import wait_event
from tests.cluster.gangs import (
    UNITS,
    bound,
    gpu_nodes,
    member,
    members_bound,
    names,
    wait_members,
    wait_one_whole,
)
from tests.cluster.kubernetes import chosen
from tests.cluster.pod_groups import (
    DEFINITION,
    KIND,
    NATIVE_KIND,
    create,
    create_native,
    serve,
)

pytestmark = [pytest.mark.cluster, pytest.mark.every_version, pytest.mark.usefixtures("gates")]

NODES: Final = {"source-1": "a", "source-2": "a", "source-3": "b"}  # with two GPUs each
SOURCES: Final = [each for each in Source if each is not Source.NATIVE or chosen().has_native_gangs]


@pytest.fixture(scope="module")
def coscheduling(cluster: Cluster) -> Iterator[None]:
    """Serve PodGroups of coscheduling, and let the extender notice it at once."""
    serve(cluster)
    Gpushare(cluster).restart_extender()
    yield
    cluster.kubectl("delete", "-f", str(DEFINITION))


@pytest.fixture
def pods(gpushare: Gpushare, coscheduling: None) -> Iterator[Workloads]:
    with gpu_nodes(gpushare, NODES):
        yield Workloads(gpushare.cluster)
    kinds = [KIND, NATIVE_KIND] if chosen().has_native_gangs else [KIND]
    for kind in kinds:
        gpushare.cluster.kubectl("delete", kind, "--all")


def state(cluster: Cluster, gang: str, minimum: int, source: Source) -> None:
    """Create the PodGroup of a gang, if its source has PodGroups."""
    if source is Source.POD_GROUP:
        create(cluster, gang, {"minMember": minimum})
    elif source is Source.NATIVE:
        create_native(cluster, gang, minimum)


def wait_said(gpushare: Gpushare, gang: str, text: str) -> None:
    """Wait until `gpushare gangs` would say this of a gang."""

    def other() -> str | None:
        _, found = gpushare.call("GET", "/gpushare-scheduler/gangs")
        said = [each["text"] for each in found["gangs"] if each["name"] == gang]
        return None if any(text in each for each in said) else str(found)

    wait_until(f"{gang}: {text!r}", other, seconds=30)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("is_gated", [False, True], ids=["ungated", "gated"])
def test_of_two_gangs_that_exclude_each_other_one_is_whole_and_then_the_other(
    pods: Workloads, source: Source, is_gated: bool
):
    for gang in ("x", "y"):
        state(pods.cluster, gang, 4, source)
    for number in range(4):
        pods.create(
            *(member(g, number, 4, 12, source=source, is_gated=is_gated) for g in ("x", "y"))
        )
    whole, other = wait_one_whole(pods, ("x", "y"), 4)
    wait_event(pods, f"{other}-0", "No room for 4 x 12 MiB together")
    assert members_bound(pods) == {whole: 4}
    pods.delete(*names(whole, 4))
    wait_members(pods, **{other: 4})


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("is_gated", [False, True], ids=["ungated", "gated"])
def test_a_gang_waits_for_its_members(
    pods: Workloads, gpushare: Gpushare, source: Source, is_gated: bool
):
    state(pods.cluster, "few", 3, source)
    made = [member("few", n, 3, UNITS, source=source, is_gated=is_gated) for n in range(3)]
    pods.create(*made[:2])
    wait_said(gpushare, "few", "Waiting for 1 of 3 members")
    assert bound(pods) == {}
    pods.create(made[2])
    wait_members(pods, few=3)
