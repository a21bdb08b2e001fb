"""New pods with GPU memory get the second scheduler, and no other pod changes."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from extender.decisions.admission_review import encode
from extender.decisions.scheduler_name import decide
from extender.settings.listeners import AddedToleration, Admission, Certificate
from gpushare.errors import UNDECODABLE
from gpushare.objects.scheduling import Taint, Toleration
from gpushare.placement.node_constraints import is_tolerated

NAME = "gpushare-scheduler"
GIVEN = Admission("0.0.0.0", 10250, Certificate("crt", "key"))
GPU_TAINT = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
OURS = ("aliyun.com/gpu-mem", "aliyun.com/gpu-count")

amounts = st.none() | st.dictionaries(
    st.sampled_from([*OURS, "cpu", "nvidia.com/gpu"]), st.sampled_from(["1", 8, "2Gi"])
)
containers = st.none() | st.lists(
    st.fixed_dictionaries(
        {"name": st.text()},
        optional={
            "resources": st.none()
            | st.fixed_dictionaries({}, optional={"limits": amounts, "requests": amounts})
        },
    ),
    max_size=3,
)
tolerations = st.none() | st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "key": st.sampled_from(["nvidia.com/gpu", "other"]),
            "operator": st.sampled_from(["Exists", "Equal"]),
            "value": st.sampled_from(["", "true"]),
            "effect": st.sampled_from(["", "NoSchedule", "NoExecute"]),
        },
    ).filter(lambda each: "key" in each or each.get("operator") == "Exists"),
    max_size=3,
)
specs = st.fixed_dictionaries(
    {"schedulerName": st.sampled_from(["default-scheduler", NAME, "mine"])},
    optional={
        "nodeName": st.sampled_from(["", "n1"]),
        "containers": containers,
        "initContainers": containers,
        "priority": st.none() | st.integers(),
        "tolerations": tolerations,
    },
)


def review(spec: Any, **other: Any) -> bytes:
    request = {
        "uid": "u-1",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "operation": "CREATE",
        "object": {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "p"}, "spec": spec},
        "dryRun": False,
        **other,
    }
    whole = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    return json.dumps(whole).encode()


def changed(review: bytes, given: Admission = GIVEN) -> dict[str, Any] | None:
    """Return the spec after the response's patch, after checking the response's form."""
    answer = json.loads(encode(decide(review, given)))
    assert (answer["kind"], answer["apiVersion"]) == ("AdmissionReview", "admission.k8s.io/v1")
    response = answer["response"]
    assert (response["uid"], response["allowed"]) == ("u-1", True)
    if "patch" not in response:
        assert "patchType" not in response
        return None
    assert response["patchType"] == "JSONPatch"
    spec = json.loads(review)["request"]["object"]["spec"]
    for operation in json.loads(base64.b64decode(response["patch"])):
        assert operation["op"] == "add"
        key, *last = operation["path"].removeprefix("/spec/").split("/")
        if last:
            assert last == ["-"]
            spec[key].append(operation["value"])
        else:
            spec[key] = operation["value"]
    return spec


def patched(review: bytes) -> str | None:
    """Return the scheduler that the response sets."""
    spec = changed(review, replace(GIVEN, tolerations=()))
    return None if spec is None else spec["schedulerName"]


def asks(spec: dict[str, Any]) -> bool:
    """Return what the policy gpushare-scheduler-name selects."""
    found = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    return any(
        key in ((each.get("resources") or {}).get(kind) or {})
        for each in found
        for kind in ("limits", "requests")
        for key in OURS
    )


@given(specs)
def test_a_pod_changes_if_it_requests_gpu_memory_and_its_author_chose_no_scheduler(spec):
    is_free = spec["schedulerName"] == "default-scheduler" and not spec.get("nodeName")
    assert patched(review(spec)) == (NAME if is_free and asks(spec) else None)


GPU = {"resources": {"limits": {OURS[0]: "1"}}}


@given(specs)
def test_a_pod_of_the_second_scheduler_tolerates_the_taint_of_gpu_nodes_once(spec):
    spec["containers"] = [GPU, *(spec.get("containers") or ())]
    found = changed(review(spec))
    if spec["schedulerName"] == "mine" or spec.get("nodeName"):
        assert found is None
        return
    after = (found or spec)["tolerations"]
    taint = Taint("nvidia.com/gpu", "NoSchedule", "present")
    read = [Toleration(**each) for each in after]
    assert is_tolerated(taint, read)
    before = spec.get("tolerations") or []
    assert after[: len(before)] == before
    assert after[len(before) :] in ([], [GPU_TAINT])
    assert changed(review({**(found or spec), "schedulerName": NAME})) is None


@pytest.mark.parametrize(
    ("own", "wanted", "is_added"),
    [
        ({"operator": "Exists"}, GPU_TAINT, False),
        ({"key": "nvidia.com/gpu", "operator": "Exists"}, GPU_TAINT, False),
        ({**GPU_TAINT, "effect": "NoExecute"}, GPU_TAINT, True),
        ({"key": "nvidia.com/gpu", "value": "true"}, GPU_TAINT, True),
        (
            {"key": "pool", "value": "gpu"},
            {"key": "pool", "operator": "Equal", "value": "gpu"},
            False,
        ),
        (
            {"key": "pool", "value": "cpu"},
            {"key": "pool", "operator": "Equal", "value": "gpu"},
            True,
        ),
    ],
)
def test_what_a_pod_tolerates_already_is_not_added(own, wanted, is_added):
    spec = {"schedulerName": NAME, "containers": [GPU], "tolerations": [own]}
    found = changed(review(spec), replace(GIVEN, tolerations=(AddedToleration(**wanted),)))
    assert found == ({**spec, "tolerations": [own, wanted]} if is_added else None)


def test_without_tolerations_in_the_configuration_none_is_added():
    spec = {"schedulerName": "default-scheduler", "containers": [GPU]}
    found = changed(review(spec), replace(GIVEN, tolerations=()))
    assert found == {**spec, "schedulerName": NAME}


@pytest.mark.parametrize(
    "other",
    [
        {"operation": "UPDATE"},
        {"subResource": "status"},
        {"resource": {"group": "apps", "version": "v1", "resource": "deployments"}},
    ],
)
def test_only_the_creation_of_a_pod_changes_anything(other):
    container = {"resources": {"limits": {OURS[0]: "1"}}}
    spec = {"schedulerName": "default-scheduler", "containers": [container]}
    assert patched(review(spec)) == NAME
    assert patched(review(spec, **other)) is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[" * 100_000,
        b'{"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"}',
        review({"containers": "many"}),
        review({"containers": [{"resources": {"limits": {OURS[0]: {}}}}]}),
        review({}).replace(b"admission.k8s.io/v1", b"admission.k8s.io/v1beta1"),
        review({}).replace(b"AdmissionReview", b"Status"),
        review({})[:-1],
    ],
)
def test_what_is_not_a_review_of_a_pod_is_an_error(body):
    with pytest.raises(UNDECODABLE):
        decide(body, GIVEN)
