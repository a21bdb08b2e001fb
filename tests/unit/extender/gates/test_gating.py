"""New pods with GPU memory and members of gangs get our gate, once; other pods do not change."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.decisions.admission_review import encode
from extender.gates.gating import decide
from gpushare.contract import (
    ANNOTATION_KUEUE_GROUP,
    GATE_ADMISSION,
    LABEL_GANG,
    LABEL_KUEUE_GROUP,
    LABEL_POD_GROUP,
    RESOURCE_COUNT,
    RESOURCE_MEMORY,
)
from gpushare.errors import UNDECODABLE
from tests.unit.extender.decisions import test_scheduler_name
from tests.unit.extender.decisions.test_scheduler_name import containers

LABELS = (LABEL_GANG, LABEL_POD_GROUP, LABEL_KUEUE_GROUP)
OURS = {"name": GATE_ADMISSION}
others = st.lists(st.sampled_from(["a.io/x", "b.io/y", "z"]), unique=True, max_size=2)
ON_ONE_NODE = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
ELSEWHERE = {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}
affinities = st.sampled_from(
    [
        *(
            [
                {
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {
                            "nodeSelectorTerms": terms
                        }
                    }
                }
                for terms in (
                    [ON_ONE_NODE],
                    [ON_ONE_NODE],
                    [ELSEWHERE],
                    [{"matchFields": None}],
                    None,
                )
            ]
        ),
        {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": None}},
        {"nodeAffinity": None},
        {},
        None,
    ]
)
gates = st.none() | st.tuples(others, st.booleans()).map(
    lambda found: [{"name": name} for name in found[0]] + [OURS] * found[1]
)
specs = st.fixed_dictionaries(
    {},
    optional={
        "nodeName": st.sampled_from(["", "", "n1"]),
        "affinity": affinities,
        "containers": containers,
        "initContainers": containers,
        "schedulingGates": gates,
        "schedulingGroup": st.sampled_from([None, {}, {"podGroupName": ""}, {"podGroupName": "g"}]),
    },
)
owners = st.fixed_dictionaries(
    {
        "apiVersion": st.sampled_from(["apps/v1", "apps/v1", "tenant.example/v1"]),
        "kind": st.sampled_from(["DaemonSet", "DaemonSet", "Job"]),
        "name": st.just("o"),
        "uid": st.just("u"),
    },
    optional={"controller": st.sampled_from([True, True, False, None])},
)
metadata = st.fixed_dictionaries(
    {"name": st.just("p")},
    optional={
        "labels": st.none()
        | st.dictionaries(st.sampled_from([*LABELS, "app"]), st.sampled_from(["", "g"])),
        "annotations": st.none()
        | st.dictionaries(
            st.sampled_from([ANNOTATION_KUEUE_GROUP, "note"]), st.sampled_from(["", "g"])
        ),
        "ownerReferences": st.none() | st.lists(owners, max_size=2),
    },
)


def review(spec: Any, meta: Any = None, **changed: Any) -> bytes:
    found = {"kind": "Pod", "apiVersion": "v1", "metadata": meta or {"name": "p"}, "spec": spec}
    return test_scheduler_name.review(spec, **{"object": found, **changed})


def gated(asked: bytes, spec: dict[str, Any]) -> list[Any]:
    """Return the gates of a pod after the answer's patch."""
    response = json.loads(encode(decide(asked)))["response"]
    assert (response["uid"], response["allowed"]) == ("u-1", True)
    found = [*(spec.get("schedulingGates") or ())]
    if "patch" not in response:
        return found
    (operation,) = json.loads(base64.b64decode(response["patch"]))
    if operation["path"] == "/spec/schedulingGates/-":
        assert found, "there must be a list to append to"
        return [*found, operation["value"]]
    assert (operation["op"], operation["path"]) == ("add", "/spec/schedulingGates")
    assert not found, "gates of others would be lost"
    return list(operation["value"])


def is_meant(spec: dict[str, Any], meta: dict[str, Any]) -> bool:
    if spec.get("nodeName"):
        return False
    if is_of_a_daemon_set(spec, meta):
        return False
    asks = any(
        RESOURCE_MEMORY in ((each.get("resources") or {}).get(kind) or {})
        for each in [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
        for kind in ("limits", "requests")
    )
    labels = meta.get("labels") or {}
    notes = meta.get("annotations") or {}
    named = notes.get(ANNOTATION_KUEUE_GROUP) or (spec.get("schedulingGroup") or {}).get(
        "podGroupName"
    )
    return bool(asks or named or any(labels.get(key) for key in LABELS))


def is_of_a_daemon_set(spec: dict[str, Any], meta: dict[str, Any]) -> bool:
    owners = meta.get("ownerReferences") or ()
    found = [
        owner
        for owner in owners
        if owner["apiVersion"] == "apps/v1" and owner["kind"] == "DaemonSet"
    ]
    on_one_node = "metadata.name" in json.dumps(spec.get("affinity"))
    return on_one_node and any(owner.get("controller") for owner in found)


@given(specs, metadata)
def test_a_pod_that_is_meant_has_the_gate_once_and_gates_of_others_stay(spec, meta):
    before = spec.get("schedulingGates") or []
    after = gated(review(spec, meta), spec)
    if is_meant(spec, meta) and OURS not in before:
        assert after == [*before, OURS]
    else:
        assert after == before
    again = {**spec, "schedulingGates": after}
    assert gated(review(again, meta), again) == after


def test_an_owner_of_the_kind_daemon_set_alone_is_no_way_around_the_gate():
    spec = {"containers": [{"resources": {"limits": {RESOURCE_MEMORY: "1"}}}]}
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "o", "uid": "u"}
    meta = {"name": "p", "ownerReferences": [owner]}
    required = {"nodeSelectorTerms": [ON_ONE_NODE]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    assert gated(review(spec, meta), spec) == [OURS]
    assert gated(review({**spec, "affinity": affinity}, meta), spec) == [OURS]
    owner["controller"] = True
    assert gated(review(spec, meta), spec) == [OURS]
    assert gated(review({**spec, "affinity": affinity}, meta), spec) == []


@pytest.mark.parametrize(
    "changed",
    [
        {"operation": "UPDATE"},
        {"subResource": "status"},
        {"resource": {"group": "apps", "version": "v1", "resource": "deployments"}},
    ],
)
def test_only_the_creation_of_a_pod_changes_anything(changed):
    spec = {"containers": [{"resources": {"limits": {RESOURCE_MEMORY: "1"}}}]}
    assert gated(review(spec), spec) == [OURS]
    assert gated(review(spec, **changed), spec) == []


def test_a_pod_with_only_the_number_of_gpus_is_left_to_its_refusal():
    spec = {"containers": [{"resources": {"limits": {RESOURCE_COUNT: "1"}}}]}
    assert gated(review(spec), spec) == []


@pytest.mark.parametrize(
    "body", [b"", b"null", review({"schedulingGates": "many"}), review({})[:-1]]
)
def test_what_is_not_a_review_of_a_pod_is_an_error(body):
    with pytest.raises(UNDECODABLE):
        decide(body)
