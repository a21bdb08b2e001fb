"""Amounts that the API server refuses are refused here, with what to write."""

import pytest

from gpushare.objects.model import Container, ObjectMeta, Pod, PodSpec, Resources
from gpusharectl.manifests.resource_rules import refused

MEMORY = "aliyun.com/gpu-mem"


def told(limits=None, requests=None, *, init=False):
    container = Container("main", Resources(limits=limits, requests=requests))
    spec = PodSpec(init_containers=(container,)) if init else PodSpec(containers=(container,))
    return [(place, text) for place, text in refused(Pod(ObjectMeta(name="a"), spec))]


@pytest.mark.parametrize(
    ("limits", "requests"),
    [
        ({MEMORY: 8}, None),
        ({MEMORY: 8}, {MEMORY: "8"}),
        ({MEMORY: "8k"}, {MEMORY: 8000}),
        ({MEMORY: "2000m"}, None),  # two
        ({"cpu": 2}, {"cpu": "500m"}),
        (None, {"cpu": 1, "memory": "1Gi"}),
        ({"hugepages-2Mi": "4Mi"}, None),
        ({"nvidia.com/gpu": 1, MEMORY: 4}, {"nvidia.com/gpu": 1}),
    ],
)
def test_what_kubernetes_accepts_is_accepted(limits, requests):
    assert told(limits, requests) == []


@pytest.mark.parametrize("resource", [MEMORY, "nvidia.com/gpu", "hugepages-2Mi"])
def test_a_request_needs_an_equal_limit(resource):
    [(place, text)] = told(None, {resource: 8})
    assert place == ("containers", 0, "resources", "requests", resource)
    assert text == (
        "container main: Kubernetes refuses 8: Limit must be set for non overcommitable "
        f"resources: write limits: {{{resource}: 8}}"
    )
    [(place, text)] = told({resource: 16}, {resource: 8})
    assert place[-2:] == ("requests", resource)
    assert f"must be equal to {resource} limit of 16: write only limits" in text


def test_parts_of_a_unit_and_less_than_nothing_are_refused():
    [(place, text)] = told({MEMORY: "1500m"})
    assert place == ("containers", 0, "resources", "limits", MEMORY)
    assert text == (
        f"container main: Kubernetes refuses '1500m': must be an integer: write {MEMORY}: 2"
    )
    assert "greater than or equal to 0" in told({"cpu": "-1"})[0][1]


def test_a_request_above_its_limit_is_refused():
    [(_, text)] = told({"cpu": 1}, {"cpu": 2})
    assert text.endswith("must be less than or equal to cpu limit of 1")


def test_a_name_without_a_domain_is_refused_with_the_right_one():
    [(place, text)] = told({"gpu-mem": 8}, init=True)
    assert place == ("initContainers", 0, "resources", "limits", "gpu-mem")
    assert text.endswith("gpu-mem: did you mean aliyun.com/gpu-mem?")
