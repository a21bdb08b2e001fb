"""The extender's watch of pods counts what all of them use, whatever their size."""

from contextlib import asynccontextmanager

import msgspec
import pytest

from extender.watch.cluster import ClusterWatch, PodHandler
from extender.watch.live_pods import LivePods
from gpushare.contract import LABEL_GANG, RESOURCE_MEMORY
from gpushare.kube import paths
from gpushare.kube.informer import LARGE_BYTES, Informer
from gpushare.objects.model import Pod
from tests.builders import node
from tests.fakes.clock import FakeClock
from tests.integration.kube.apiserver import FrontDoor, hang, status, text, watch
from tests.unit.extender.scripted import changed
from tests.waiting import eventually, running

pytestmark = pytest.mark.integration


def pod(name, version, *, cpu="1", units="", labels=None, padding=0, deep=0):
    """Return a pod on the node; ``deep``: levels of its managed fields."""
    limits = {"cpu": cpu} | ({RESOURCE_MEMORY: units} if units else {})
    # The API server writes managed fields last in metadata.
    metadata = {
        "name": name,
        "namespace": "team",
        "uid": name,
        "resourceVersion": version,
        "labels": labels or {},
        "annotations": {"padding": msgspec.Raw(b'"' + rb"\u003c" * padding + b'"')},
        "managedFields": [{"fieldsV1": msgspec.Raw(b'{"f:x":' * deep + b"{}" + b"}" * deep)}],
    }
    containers = [{"name": "main", "resources": {"limits": limits}}]
    return {"metadata": metadata, "spec": {"nodeName": "n", "containers": containers}}


def event(kind, found):
    return {"type": kind, "object": found}


def listed(version, *found):
    page = {"metadata": {"resourceVersion": version}, "items": found}
    return text(msgspec.json.encode(page))


@asynccontextmanager
async def watched(answers, tmp_path):
    """Yield a cluster that follows these answers, who gives them, and the informer between."""
    cluster, door = ClusterWatch(1, lambda *_: None, FakeClock()), FrontDoor()
    cluster.node_changed(changed(node("n", 16), status={"allocatable": {"cpu": "99"}}))
    door.answers = answers
    async with door.connect(tmp_path) as kube:
        informer = Informer(kube, paths.pods(), Pod, PodHandler(cluster), read=LivePods().read)
        async with running(informer.run()):
            yield cluster, door, informer


def used(cluster):
    return 99 - cluster.state.free_resources("n")["cpu"] // 1000


async def test_pods_of_all_kinds_and_sizes_count(tmp_path):
    large = LARGE_BYTES // 2
    answers = [
        listed("5", pod("web", "5"), pod("share", "5", cpu="2", units="4")),
        watch(
            event("ADDED", pod("member", "6", cpu="4", labels={LABEL_GANG: "g"})),
            event("ADDED", pod("large", "7", cpu="8", padding=large)),
            event("ADDED", pod("large-share", "8", cpu="16", units="4", padding=large)),
            then=hang,
        ),
    ]
    async with watched(answers, tmp_path) as (cluster, _, informer):
        await eventually(lambda: used(cluster) == 1 + 2 + 4 + 8 + 16)
        assert {share.pod_uid for share in cluster.ledger.shares()} == {"share", "large-share"}
        assert list(cluster.state.groups.uids()) == ["member"]
        assert not informer.restarts


async def test_pods_that_end_and_that_a_list_no_longer_has_count_no_longer(tmp_path):
    answers = [
        listed("5", pod("a", "5"), pod("b", "5", cpu="2"), pod("c", "5", cpu="4")),
        watch(event("DELETED", pod("a", "6")), then=hang),
        listed("9", pod("c", "5", cpu="8")),
        watch(then=hang),
    ]
    async with watched(answers, tmp_path) as (cluster, _, informer):
        await eventually(lambda: used(cluster) == 6)
        await informer.relist()
        assert used(cluster) == 8


async def test_the_watch_resumes_after_any_pod(tmp_path):
    answers = [
        listed("5"),
        watch(event("ADDED", pod("web", "6")), event("ADDED", pod("large", "7", padding=99_999))),
        watch(event("ADDED", pod("deep", "8", deep=5000))),
        watch(then=hang),
    ]
    async with watched(answers, tmp_path) as (cluster, door, _):
        await eventually(lambda: len(door.asked) == 4, 10)
        assert set(cluster.state.use.uids()) == {"web", "large", "deep"}
    asked = [query for _, _, query, _ in door.asked if "watch" in query]
    assert [query["resourceVersion"] for query in asked] == ["5", "7", "8"]


async def test_after_an_expired_version_all_pods_are_listed_again(tmp_path):
    answers = [
        listed("5", pod("a", "5")),
        status(410, "Expired"),
        listed("50", pod("b", "50", cpu="3")),
        watch(then=hang),
    ]
    async with watched(answers, tmp_path) as (cluster, _, _):
        await eventually(lambda: set(cluster.state.use.uids()) == {"b"}, 10)
        assert used(cluster) == 3
