"""PodGroups of a real API server reach the index of gangs, with the extender's rights."""

import json
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from extender.watch import pod_groups
from extender.watch.pod_groups import PodGroupWatch
from gpushare.groups import reasons
from gpushare.groups.index import Groups
from gpushare.groups.model import Source
from gpushare.kube.client import Kube
from localcluster.cluster import Cluster
from localcluster.gpushare import NAMESPACE, Gpushare
from tests.cluster.kubernetes import chosen
from tests.cluster.pod_groups import (
    DEFINITION,
    KIND,
    NATIVE_KIND,
    OBJECTS,
    VERSION,
    create,
    create_native,
    serve,
)
from tests.gangs import member
from tests.trials.hostile_objects import nested_fields
from tests.waiting import eventually, running

pytestmark = pytest.mark.cluster

ROLE = "gpushare-extender"
DEPTH = 3000  # more than the decoder goes down


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look often instead of every minute."""
    monkeypatch.setattr(pod_groups, "EVERY_SECONDS", 0.2)


@pytest.fixture
def coscheduling(gpushare: Gpushare) -> Iterator[Cluster]:
    """Serve PodGroups of coscheduling."""
    cluster = gpushare.cluster
    serve(cluster)
    yield cluster
    cluster.kubectl("delete", "--ignore-not-found", "-f", str(DEFINITION))


@asynccontextmanager
async def watched(gpushare: Gpushare, source: Source) -> AsyncIterator[Groups]:
    """Watch with the extender's own rights; the index has a gang of the group ``g``."""
    kubeconfig = gpushare.cluster.service_account_kubeconfig(NAMESPACE, ROLE)
    groups = Groups()
    groups.update(member("a", source=source))
    async with (
        Kube.connect(str(kubeconfig)) as kube,
        running(PodGroupWatch(kube, groups, source).run()),
    ):
        yield groups


async def until(groups: Groups, problem: object, minimum: int = 1) -> None:
    (group,) = groups
    await eventually(lambda: (group.problem, group.minimum) == (problem, minimum))


def create_deep(cluster: Cluster, name: str) -> None:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(4 * DEPTH)  # json reads and writes no deeper
    try:
        fields = [{**each, "apiVersion": VERSION} for each in nested_fields(DEPTH)]
        create(cluster, name, {"minMember": 2}, managedFields=fields, annotations={"x": "y"})
        with cluster.api() as api:
            found = str(api.request("GET", f"{OBJECTS}/{name}"))
        assert found.count("f:y") == DEPTH, "the API server has kept all of it"
    finally:
        sys.setrecursionlimit(limit)


def change(cluster: Cluster, what: str, **fields: object) -> None:
    cluster.kubectl("patch", what, "--type=merge", f"--patch={json.dumps(fields)}")


async def test_a_pod_group_is_known_from_its_creation_to_its_deletion(
    gpushare: Gpushare, coscheduling: Cluster
):
    async with watched(gpushare, Source.POD_GROUP) as groups:
        await until(groups, reasons.NO_POD_GROUP)
        create(coscheduling, "g", {"minMember": 3, "scheduleTimeoutSeconds": 60})
        await until(groups, None, 3)
        change(coscheduling, f"{KIND}/g", spec={"minMember": 5})
        await until(groups, None, 5)
        coscheduling.kubectl("delete", KIND, "g")
        await until(groups, reasons.NO_POD_GROUP)


async def test_a_kind_that_comes_goes_and_returns_is_followed(gpushare: Gpushare):
    cluster = gpushare.cluster
    async with watched(gpushare, Source.POD_GROUP) as groups:
        for minimum in (3, 4):
            await until(groups, reasons.NOT_SERVED)
            serve(cluster)
            create(cluster, "g", {"minMember": minimum})
            await until(groups, None, minimum)
            cluster.kubectl("delete", "-f", str(DEFINITION))
        await until(groups, reasons.NOT_SERVED)


async def test_deep_managed_fields_hide_no_pod_group(gpushare: Gpushare, coscheduling: Cluster):
    create_deep(coscheduling, "deep")
    create(coscheduling, "g", {"minMember": 3})
    async with watched(gpushare, Source.POD_GROUP) as groups:
        await until(groups, None, 3)
        create_deep(coscheduling, "deeper")
        change(coscheduling, f"{KIND}/g", spec={"minMember": 5})
        await until(groups, None, 5)


async def test_without_the_right_a_gang_says_so_until_it_is_given(
    gpushare: Gpushare, coscheduling: Cluster
):
    create(coscheduling, "g", {"minMember": 3})
    role = json.loads(coscheduling.kubectl("get", "clusterrole", ROLE, "-o", "json"))
    less = [each for each in role["rules"] if each["resources"] != ["podgroups"]]
    change(coscheduling, f"clusterrole/{ROLE}", rules=less)
    try:
        async with watched(gpushare, Source.POD_GROUP) as groups:
            await until(groups, reasons.NOT_READABLE)
            change(coscheduling, f"clusterrole/{ROLE}", rules=role["rules"])
            await until(groups, None, 3)
    finally:
        change(coscheduling, f"clusterrole/{ROLE}", rules=role["rules"])


@pytest.mark.every_version
async def test_native_pod_groups_are_read_where_they_are_switched_on(gpushare: Gpushare):
    async with watched(gpushare, Source.NATIVE) as groups:
        if not chosen().has_native_gangs:
            await until(groups, reasons.NOT_SERVED)
            return
        await until(groups, reasons.NO_POD_GROUP)
        create_native(gpushare.cluster, "g", 4)
        await until(groups, None, 4)
        gpushare.cluster.kubectl("delete", NATIVE_KIND, "g")
        await until(groups, reasons.NO_POD_GROUP)
