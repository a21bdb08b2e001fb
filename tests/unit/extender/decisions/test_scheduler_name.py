"""New pods with GPU memory get the second scheduler, and no other pod changes."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.decisions.admission_review import encode
from extender.decisions.scheduler_name import decide
from gpushare.errors import UNDECODABLE

NAME = "gpushare-scheduler"
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
specs = st.fixed_dictionaries(
    {"schedulerName": st.sampled_from(["default-scheduler", NAME, "mine"])},
    optional={
        "nodeName": st.sampled_from(["", "n1"]),
        "containers": containers,
        "initContainers": containers,
        "priority": st.none() | st.integers(),
    },
)


def review(spec: Any, **changed: Any) -> bytes:
    request = {
        "uid": "u-1",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "operation": "CREATE",
        "object": {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "p"}, "spec": spec},
        "dryRun": False,
        **changed,
    }
    whole = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    return json.dumps(whole).encode()


def patched(review: bytes) -> str | None:
    """Return the scheduler that the response sets, after checking the response's form."""
    answer = json.loads(encode(decide(review, NAME)))
    assert (answer["kind"], answer["apiVersion"]) == ("AdmissionReview", "admission.k8s.io/v1")
    response = answer["response"]
    assert (response["uid"], response["allowed"]) == ("u-1", True)
    if "patch" not in response:
        assert "patchType" not in response
        return None
    assert response["patchType"] == "JSONPatch"
    (operation,) = json.loads(base64.b64decode(response["patch"]))
    assert (operation["op"], operation["path"]) == ("add", "/spec/schedulerName")
    return operation["value"]


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


@pytest.mark.parametrize(
    "changed",
    [
        {"operation": "UPDATE"},
        {"subResource": "status"},
        {"resource": {"group": "apps", "version": "v1", "resource": "deployments"}},
    ],
)
def test_only_the_creation_of_a_pod_changes_anything(changed):
    container = {"resources": {"limits": {OURS[0]: "1"}}}
    spec = {"schedulerName": "default-scheduler", "containers": [container]}
    assert patched(review(spec)) == NAME
    assert patched(review(spec, **changed)) is None


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
        decide(body, NAME)
