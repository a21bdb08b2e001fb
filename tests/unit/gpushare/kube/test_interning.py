"""Sharing parts does not change a pod."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gpushare.kube import interning
from gpushare.kube.interning import Interner
from gpushare.objects.model import Pod
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
    text = {
        "metadata": {"name": "a", "labels": {"app": "x"}, "annotations": {"some/key": "false"}},
        "spec": {"containers": [{"name": "main", "resources": {"limits": {"cpu": "1"}}}]},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }
    known, (first, second) = Interner(), (decoded(text), decoded(text))
    for each in (first, second):
        known.share(each)
    assert first.metadata.labels is second.metadata.labels
    assert first.status.conditions is second.status.conditions
    assert first.containers[0].resources is second.containers[0].resources
    assert first.metadata.annotations is not second.metadata.annotations


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
