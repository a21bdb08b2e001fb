"""Nobody opens a GPU to a container past gpushare: not by annotations, not by kubectl debug."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from localcluster.errors import ApiError
from localcluster.gpushare import Gpushare
from localcluster.workloads import Workloads, container, pod
from tests.cluster.expect import by_hand
from tests.cluster.test_forging import Ask, annotated, ask

__all__ = ["ask"]

pytestmark = pytest.mark.cluster

PODS = "/api/v1/namespaces/default/pods"
POD = f"{PODS}/mine"
CLASSES = "/apis/node.k8s.io/v1/runtimeclasses"
NVIDIA = {
    "apiVersion": "node.k8s.io/v1",
    "kind": "RuntimeClass",
    "metadata": {"name": "nvidia"},
    "handler": "nvidia",
}


@pytest.fixture
def runtime_class(gpushare: Gpushare) -> Iterator[str]:
    with gpushare.cluster.api() as api, contextlib.suppress(ApiError):  # it may be there
        api.request("POST", CLASSES, NVIDIA)
    return "nvidia"


@pytest.mark.parametrize(
    ("key", "value", "is_refused"),
    [
        ("cdi.k8s.io/x", "runtime.nvidia.com/gpu=all", True),
        ("cdi.k8s.io/x", "vendor.com/nic=0,management.nvidia.com/gpu=all", True),
        ("cdi.k8s.io/x", "gpushare.aliyun.com/share=1f", True),
        ("nvidia.cdi.k8s.io/container.main", "nvidia.com/gpu=all", True),
        ("nvidia.cdi.k8s.io/pod", "gpushare.aliyun.com/share=1f", True),
        ("nvidia.cdi.k8s.io", "nvidia.com/gpu=all", True),
        ("nvidia.cdi.k8s.io", "gpushare.aliyun.com/share=1f", True),
        ("nvidia.cdi.k8s.io/container.main", "management.nvidia.com/gpu=all", False),
        ("nvidia.cdi.k8s.io", "management.nvidia.com/gpu=all", False),
        ("nvidia.cdi.k8s.io", "management.nvidia.com/gpu=all,nvidia.com/gpu=0", True),
        ("cdi.k8s.io/x", "vendor.com/nic=0", False),
        ("nvidia.cdi.k8s.iox", "nvidia.com/gpu=all", False),
        ("example.com/x", "nvidia.com/gpu=all", False),
    ],
)
def test_annotations_that_open_gpus_are_refused(
    pods: Workloads, ask: Ask, key: str, value: str, *, is_refused: bool
):
    pods.create(pod("mine"))
    said = ask("POST", PODS, pod("made", metadata={"annotations": {key: value}}))
    later = ask("PATCH", POD, annotated(**{key: value}))
    assert [f"the annotation {key} would open GPUs" in each for each in (said, later)] == [
        is_refused
    ] * 2
    assert is_refused or said == later == ""


def test_a_binding_brings_no_annotation_that_opens_gpus(pods: Workloads, ask: Ask):
    """The API server copies the annotations of a Binding to the pod."""
    pods.create(pod("mine", schedulerName="nobody"))
    for path in (f"{POD}/binding", "/api/v1/namespaces/default/bindings"):
        for key, value in (
            ("nvidia.cdi.k8s.io", "nvidia.com/gpu=all"),
            ("nvidia.cdi.k8s.io/pod", "management.nvidia.com/gpu=all"),
            ("cdi.k8s.io/x", "nvidia.com/gpu=all"),
        ):
            said = ask("POST", path, by_hand("mine", "n1", annotations={key: value}))
            assert f"the annotation {key} would open GPUs" in said
        assert ask("POST", path, by_hand("mine", "n1", annotations={"probe": "x"})) == ""


def test_nvidias_runtime_gives_no_pod_the_operators_devices(ask: Ask, runtime_class: str):
    """It does not look at the namespace, which NVIDIA's NRI plugin does."""
    metadata = {"annotations": {"nvidia.cdi.k8s.io/x": "management.nvidia.com/gpu=all"}}
    said = ask("POST", PODS, pod("made", metadata=metadata, runtimeClassName=runtime_class))
    assert "would open GPUs" in said


def ephemeral(name: str, **env: str) -> dict[str, Any]:
    return {"spec": {"ephemeralContainers": [container(name, None, env)]}}


def test_ephemeral_containers_hide_all_gpus(
    gpushare: Gpushare, pods: Workloads, runtime_class: str
):
    described = pod("mine", 100, node="n1", runtimeClassName=runtime_class)
    pods.create(described, pod("other", runtimeClassName=runtime_class), pod("plain", 100))
    merge = "application/strategic-merge-patch+json"

    def add(name: str, body: dict[str, Any]) -> str:
        with gpushare.cluster.api() as api:
            try:
                path = f"{PODS}/{name}/ephemeralcontainers"
                api.request("PATCH", path, body, content_type=merge)
            except ApiError as err:
                return str(err)
        return ""

    for env in ({}, {"NVIDIA_VISIBLE_DEVICES": "all"}, {"NVIDIA_VISIBLE_DEVICES": ""}):
        assert "every GPU of the node" in add("mine", ephemeral("debug", **env))
    assert add("mine", ephemeral("one", NVIDIA_VISIBLE_DEVICES="void")) == ""
    assert add("mine", ephemeral("two", NVIDIA_VISIBLE_DEVICES="none")) == ""
    assert add("other", ephemeral("debug")) == "", "it asks for no GPU memory"
    assert add("plain", ephemeral("debug")) == "", "runc opens nothing to it"
