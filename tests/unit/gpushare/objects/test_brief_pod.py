"""A brief pod uses the same as the whole one."""

import tracemalloc

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.contract import GATE_ADMISSION, LABEL_GANG, RESOURCE_MEMORY
from gpushare.objects.brief_pod import read_brief
from gpushare.objects.pod_reader import MOST_AT_ONCE, MOST_RESOURCES_BYTES, read_pod
from gpushare.objects.pod_requests import MOST_NAMES, as_requests, requests_of, resources_used

CPU = st.sampled_from(["1", "250m", 2])
amounts = st.none() | st.dictionaries(
    st.sampled_from(["cpu", "memory", "vendor.com/nic", RESOURCE_MEMORY]), CPU
)
resources = st.none() | st.fixed_dictionaries({}, optional={"limits": amounts, "requests": amounts})
names = st.sampled_from("ab")
containers = st.lists(
    st.fixed_dictionaries(
        {"name": names},
        optional={"resources": resources, "restartPolicy": st.sampled_from(["Always", None])},
    ),
    max_size=3,
)
actual = st.none() | st.fixed_dictionaries({}, optional={"cpu": CPU, "memory": CPU})
in_status = {"resources": st.none() | st.builds(lambda found: {"requests": found}, actual)}
in_status["allocatedResources"] = actual
statuses = st.lists(st.fixed_dictionaries({"name": names}, optional=in_status), max_size=3)
conditions = st.lists(
    st.sampled_from(
        [
            {"type": "Ready", "status": "True"},
            {"type": "PodResizePending", "status": "True", "reason": "Deferred"},
            {"type": "PodResizePending", "status": "True", "reason": "Infeasible"},
        ]
    ),
    max_size=2,
    unique_by=lambda each: each["type"],
)
pods = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries(
            {"uid": st.just("u"), "resourceVersion": st.just("7")},
            optional={
                "labels": st.none()
                | st.dictionaries(st.sampled_from([LABEL_GANG, "app"]), st.sampled_from("xy")),
                "namespace": st.just("team"),
            },
        ),
        "spec": st.fixed_dictionaries(
            {},
            optional={
                "nodeName": st.none() | st.just("n"),
                "containers": containers,
                "initContainers": st.none() | containers,
                "overhead": amounts,
                "resources": resources,
                "schedulingGates": st.sampled_from(
                    [None, [{"name": "other"}], [{"name": "other"}, {"name": GATE_ADMISSION}]]
                ),
                "schedulingGroup": st.sampled_from([None, {"podGroupName": "g"}]),
            },
        ),
    },
    optional={
        "status": st.fixed_dictionaries(
            {},
            optional={
                "phase": st.sampled_from(["Running", "Succeeded"]),
                "conditions": conditions,
                "containerStatuses": statuses,
                "initContainerStatuses": st.none() | statuses,
            },
        )
    },
)


@given(pods, st.sampled_from([0, MOST_AT_ONCE]))
def test_a_brief_pod_requests_the_same(found, padding):
    body = msgspec.json.encode(found | {"padding": "x" * padding})
    brief, whole = read_brief(body), read_pod(body)
    assert requests_of(brief.pod) == requests_of(whole)
    assert (brief.metadata.uid, brief.spec.node_name or "") == (whole.uid, whole.node)
    assert brief.status.phase == whole.status.phase
    assert brief.metadata.resource_version == whole.metadata.resource_version


@given(pods, pods)
def test_pods_with_equal_amounts_request_the_same(one, other):
    other["spec"] |= one["spec"] if len(other["spec"]) < 3 else {}
    found = [read_brief(msgspec.json.encode(each)) for each in (one, other)]
    if found[0].amounts == found[1].amounts:
        assert requests_of(found[0].pod) == requests_of(found[1].pod)


@given(pods)
def test_a_brief_pod_shows_whether_it_may_be_a_member(found):
    body = msgspec.json.encode(found)
    whole = read_pod(body)
    is_ours = bool(whole.labels.get(LABEL_GANG) or whole.pod_group or whole.has_our_gate)
    assert read_brief(body).may_be_member == is_ours


def many(count, prefix="x"):
    return {f"{prefix}{number:06}.io/a": "1" for number in range(count)}


def with_containers(*found):
    return msgspec.json.encode({"metadata": {"uid": "u"}, "spec": {"containers": found}})


def test_cpu_counts_in_a_pod_with_any_number_of_containers_and_resources():
    one = {"name": "a", "resources": {"requests": {"cpu": "1"}}}
    assert requests_of(read_brief(with_containers(*[one] * 5000)).pod)["cpu"] == 5_000_000
    large = {"name": "a", "resources": {"requests": many(MOST_RESOURCES_BYTES) | {"cpu": "1"}}}
    assert requests_of(read_brief(with_containers(large, one)).pod)["cpu"] == 2000


def test_of_many_resources_those_of_kubernetes_are_kept():
    found = read_brief(with_containers({"resources": {"requests": many(500) | {"cpu": "1"}}}))
    kept = dict(as_requests(requests_of(found.pod)))
    assert len(kept) == MOST_NAMES
    assert (kept["cpu"], kept["pods"]) == (1000, 1000)


def test_amounts_of_zero_are_not_kept():
    zero = with_containers({"resources": {"requests": {"cpu": "0", "vendor.com/nic": "0"}}})
    assert as_requests(requests_of(read_brief(zero).pod)) == (("pods", 1000),)


def test_what_a_pod_of_thousands_of_containers_uses_is_known():
    one = {"name": "a", "resources": {"requests": {"cpu": "1m"}}}
    found = resources_used(read_pod(with_containers(*[one] * 5000)))
    assert found == (("cpu", 5000), ("pods", 1000))


@pytest.mark.parametrize(
    "large",
    [
        {"labels": dict.fromkeys(many(40_000), "x")},
        {"annotations": {"a": "x" * 1_500_000}},
    ],
)
def test_parts_that_are_not_read_cost_no_memory(large):
    body = msgspec.json.encode({"metadata": {"uid": "u", **large}, "spec": {}})
    read_brief(body)
    tracemalloc.start()
    found = read_brief(body)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.metadata.uid == "u"
    assert peak < 64 * 1024
