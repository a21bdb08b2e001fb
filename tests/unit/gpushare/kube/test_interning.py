"""Sharing parts does not change a pod."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gpushare.contract import ANNOTATION_CARDS
from gpushare.kube import interning
from gpushare.kube.interning import Interner
from gpushare.objects.model import Pod
from gpushare.objects.pod_reader import read_pod
from tests.unit.gpushare.objects.test_pod_reader import pods


def decoded(found: dict[str, object]) -> Pod:
    return msgspec.json.decode(msgspec.json.encode(found), type=Pod)


@given(st.lists(pods, max_size=6))
def test_sharing_does_not_change_a_pod(found):
    known = Interner()
    for each in found:
        pod = decoded(each)
        known.share(pod)
        assert msgspec.json.encode(pod) == msgspec.json.encode(decoded(each))


def test_equal_parts_of_two_pods_are_shared():
    cards = {ANNOTATION_CARDS: "GPU-0b0f3c52-7c37-4b5e-a2a6-5b9a0c9d1e0f"}
    text = {
        "metadata": {"name": "a", "labels": {"app": "x"}, "annotations": cards},
        "spec": {
            "nodeName": "n1",
            "containers": [{"name": "main", "resources": {"limits": {"cpu": "1"}}}],
        },
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }
    known, (first, second) = Interner(), (decoded(text), decoded(text))
    for each in (first, second):
        known.share(each)
    assert first.metadata.labels is second.metadata.labels
    assert first.annotations[ANNOTATION_CARDS] is second.annotations[ANNOTATION_CARDS]
    assert first.node is second.node
    assert first.spec.containers is second.spec.containers
    assert first.status is second.status
    assert first.metadata.annotations is not second.metadata.annotations


def test_two_running_pods_of_one_deployment_have_one_status():
    def running(number: int) -> Pod:
        state = {"running": {"startedAt": f"2026-11-2{number}T08:00:00Z"}}
        ended = {"terminated": {"startedAt": f"2026-11-2{number}T07:00:00Z"}}
        main = {"name": "main", "containerID": f"containerd://{number}"}
        status = {
            "phase": "Running",
            "startTime": f"2026-11-2{number}T07:59:00Z",
            "containerStatuses": [main | {"state": state, "lastState": ended}],
        }
        return read_pod(msgspec.json.encode({"metadata": {"name": "a"}, "status": status}))

    known, pods = Interner(), [running(number) for number in range(2)]
    for each in pods:
        known.share(each)
    assert pods[0].status is pods[1].status
    assert all(status.has_run for status in pods[0].statuses)


def test_unused_parts_do_not_accumulate(monkeypatch):
    monkeypatch.setattr(interning, "MOST_BYTES", 10_000)
    known = Interner()
    for number in range(2000):
        annotations = {f"key-{number}": "x"}
        known.share(decoded({"metadata": {"name": "a", "annotations": annotations}}))
    assert known.bytes < 12_000
    assert len(known._known) < 100


def test_a_large_part_counts_with_its_bytes(monkeypatch):
    monkeypatch.setattr(interning, "MOST_BYTES", 100_000)
    known = Interner()
    for number in range(50):
        tolerations = [{"key": f"{number}-{each}"} for each in range(1000)]
        spec = {"containers": [], "tolerations": tolerations}
        known.share(decoded({"metadata": {"name": "a"}, "spec": spec}))
    assert len(known._known) < 20
