"""A pod's effective requests are those that kube-scheduler counts."""

import pytest
from msgspec.structs import replace

from gpushare.errors import RequestError
from gpushare.objects.model import (
    ActualResources,
    Container,
    ContainerStatus,
    ObjectMeta,
    Pod,
    PodCondition,
    PodSpec,
    PodStatus,
    Resizable,
    Resources,
)
from gpushare.objects.pod_requests import requests_of, resources_used


def container(cpu=None, memory=None, *, limits=None, sidecar=False):
    requests = {k: v for k, v in (("cpu", cpu), ("memory", memory)) if v is not None}
    return Container("c", Resources(limits, requests), "Always" if sidecar else None)


def pod(*apps, inits=(), overhead=None):
    return Pod(ObjectMeta(name="p"), PodSpec(None, apps, inits, overhead=overhead))


@pytest.mark.parametrize(
    ("made", "cpu"),
    [
        (pod(container("1"), container("500m")), 1500),
        (pod(container("1"), inits=(container("2"),)), 2000),
        (pod(container("1"), inits=(container("2", sidecar=True),)), 3000),
        # An init container runs beside the sidecars before it, not beside those after it.
        (pod(container("1"), inits=(container("1", sidecar=True), container("3"))), 4000),
        (pod(container("1"), inits=(container("3"), container("1", sidecar=True))), 3000),
        (pod(container("1"), overhead={"cpu": "250m"}), 1250),
        (pod(container(limits={"cpu": "2"})), 2000),
        (pod(container("1", limits={"cpu": "2"})), 1000),
        (pod(container("0.0001")), 1),
        (pod(container(2)), 2000),
        (pod(container()), 0),
    ],
)
def test_effective_requests_are_those_of_kubernetes(made, cpu):
    assert requests_of(made).get("cpu", 0) == cpu


def test_each_resource_has_its_own_peak():
    made = pod(container("1", "4Gi"), inits=(container("2", "1Gi"),))
    assert requests_of(made) == {"cpu": 2000, "memory": 4 * 2**30 * 1000, "pods": 1000}


def amounts(cpu):
    return Resizable(cpu=cpu)


def resized(spec, in_force, allocated, *, sidecar=False, why=None):
    """Return a pod whose container asks for ``spec`` while its status shows other amounts."""
    status = ContainerStatus(
        "c", resources=ActualResources(amounts(in_force)), allocated_resources=amounts(allocated)
    )
    conditions = (PodCondition("PodResizePending", "True", why),) if why else None
    asks = container(spec, sidecar=sidecar)
    made = pod(inits=(asks,)) if sidecar else pod(asks)
    where = "init_container_statuses" if sidecar else "container_statuses"
    return replace(made, status=PodStatus(conditions=conditions, **{where: (status,)}))


@pytest.mark.parametrize(
    ("made", "cpu"),
    [
        (resized("3", "1", "1"), 3000),
        (resized("1", "3", "1"), 3000),
        (resized("1", "2", "3"), 3000),
        (resized("1", "3", None, sidecar=True), 3000),
        (resized("3", "1", "2", why="Deferred"), 3000),
        (resized("3", "1", "2", why="Infeasible"), 2000),
    ],
)
def test_of_a_container_that_is_resized_the_largest_amount_counts(made, cpu):
    assert requests_of(made)["cpu"] == cpu


@pytest.mark.parametrize(
    ("requests", "limits", "cpu"),
    [
        ({"cpu": "5"}, {"cpu": "6"}, 5250),
        ({"cpu": "1"}, None, 1250),
        (None, {"cpu": "6"}, 2250),
        (None, {"hugepages-2Mi": "2Mi"}, 2250),
    ],
)
def test_what_a_pod_requests_as_a_whole_replaces_the_sum(requests, limits, cpu):
    made = pod(container("1"), container("1"), overhead={"cpu": "250m"})
    whole = replace(made, spec=replace(made.spec, resources=Resources(limits, requests)))
    assert requests_of(whole)["cpu"] == cpu
    empty = replace(whole, spec=replace(whole.spec, containers=(container(),)))
    asked = ((limits or {}) | (requests or {})).get("cpu", "0")
    assert requests_of(empty)["cpu"] == int(asked) * 1000 + 250


@pytest.mark.parametrize("amount", ["x", "-1", "1KiB"])
def test_an_amount_that_cannot_be_read_is_named_with_its_container(amount):
    with pytest.raises(RequestError, match="container c: cpu: "):
        requests_of(pod(container(amount)))


def test_it_is_unknown_what_a_pod_uses_if_an_amount_cannot_be_read():
    assert resources_used(pod(container("x"))) is None
    assert resources_used(pod(container("1"))) == (("cpu", 1000), ("pods", 1000))
