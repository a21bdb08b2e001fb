"""A pod of any size is read within bounds, and its share is counted regardless."""

import builtins
import tracemalloc
import types
from typing import get_args, get_origin

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.annotations import pod_annotations
from gpushare.contract import (
    ANNOTATION_CARDS,
    ANNOTATION_CARDS_NOT,
    ANNOTATION_INDEX,
    ENV_VISIBLE_DEVICES,
    RESOURCE_MEMORY,
    RESOURCES_BEGIN,
)
from gpushare.errors import RequestError
from gpushare.objects import pod_reader
from gpushare.objects.brief_pod import read_brief
from gpushare.objects.many_containers import MOST_CONTAINERS
from gpushare.objects.model import Pod
from gpushare.objects.pod_reader import (
    MOST_AT_ONCE,
    MOST_MESSAGE,
    MOST_TOLERATIONS,
    read_pod,
)
from gpushare.objects.pod_requests import MILLI, as_requests, requests_of, resources_used
from gpushare.objects.quantity import MOST_NODE_UNITS
from tests.builders import stock

KEPT_BYTES = 512 * 1024  # of memory, of one pod whatever was in it
OPENING = "nvidia.cdi.k8s.io/container.main"
AMOUNT = {RESOURCE_MEMORY: "4"}
LIMITS = {"limits": AMOUNT}
SHARE = {"name": "main", "resources": LIMITS}


def body(**spec) -> dict:
    containers = spec.pop("containers", [SHARE])
    meta = {"name": "p", "namespace": "d", "uid": "u", "resourceVersion": "7"}
    meta |= spec.pop("metadata", {})
    return {"metadata": meta, "spec": {"containers": containers, **spec}}


def read(found: dict) -> Pod:
    return read_pod(msgspec.json.encode(found))


def many(count: int) -> list[str]:
    return [f"{number:06}" for number in range(count)]


def affinity(*terms: dict) -> dict:
    required = {"nodeSelectorTerms": terms}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def requirement(count: int) -> dict:
    expressions = [{"key": "k", "operator": "In", "values": many(count)}]
    return affinity({"matchExpressions": expressions})


def with_zeros(name: str, count: int) -> dict:
    """Return a container with many extended resources of amount 0, which the API server accepts."""
    return {
        "name": name,
        "resources": {"limits": {f"{name}.io/{each}": "0" for each in many(count)}},
    }


REFUSED = {
    "tolerations": body(tolerations=[{"key": each} for each in many(60_000)]),
    "affinity": body(affinity=requirement(60_000)),
    "nodeSelector": body(nodeSelector=dict.fromkeys(many(60_000), "x")),
    "topologySpreadConstraints": body(
        topologySpreadConstraints=[{"whenUnsatisfiable": each} for each in many(40_000)]
    ),
    "schedulingGates": body(schedulingGates=[{"name": each} for each in many(60_000)]),
    "ownerReferences": body(metadata={"ownerReferences": [{"uid": each} for each in many(60_000)]}),
    "overhead": body(overhead=dict.fromkeys(many(60_000), "1")),
    "resources": body(
        containers=[{"resources": {"limits": dict.fromkeys(many(60_000), "1") | AMOUNT}}]
    ),
    "bytes of resources": body(containers=[SHARE, *(with_zeros(each, 150) for each in many(200))]),
    "containers": body(containers=[{"name": each} for each in many(20_000)] + [SHARE]),
}  # fmt: skip
READ = {
    "variables": body(containers=[SHARE | {"env": [{"name": each} for each in many(60_000)]}]),
    "a variable": body(containers=[SHARE | {"env": [{"name": "X", "value": "<" * 1_500_000}]}]),
    "labels": body(metadata={"labels": dict.fromkeys(many(60_000), "x")}),
    "annotations": body(metadata={"annotations": dict.fromkeys(many(60_000), "x")}),
    "volumes": body(volumes=[{"name": each, "emptyDir": {}} for each in many(40_000)]),
    "ports": body(containers=[SHARE | {"ports": [{"containerPort": 1}] * 60_000}]),
    "resourceClaims": body(resourceClaims=[{"name": each} for each in many(60_000)]),
    "an annotation": body(metadata={"annotations": {"kubectl": "x" * 250_000}}),
    "as much as is read": body(
        containers=[SHARE, with_zeros("a", 600)], affinity=affinity(*[{}] * 5000)
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_pod_that_exceeds_a_limit_is_rejected_with_the_reason(name):
    with pytest.raises(RequestError, match=name):
        pod_annotations.request_of(read(REFUSED[name]))


@pytest.mark.parametrize("name", READ)
def test_parts_that_are_not_read_may_have_any_size(name):
    assert pod_annotations.request_of(read(READ[name])).units == 4


@pytest.mark.parametrize("name", REFUSED | READ)
def test_the_memory_of_a_pod_is_bounded(name):
    large = msgspec.json.encode((REFUSED | READ)[name])
    read_pod(large)
    tracemalloc.start()
    kept = read_pod(large)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept.uid == "u"
    assert size < KEPT_BYTES


@pytest.mark.parametrize("name", sorted(REFUSED.keys() - {"containers"}))
def test_a_bound_pod_counts_with_its_amount_regardless_of_other_parts(name):
    found = REFUSED[name]
    found["metadata"]["annotations"] = {ANNOTATION_CARDS: "GPU-0", ANNOTATION_INDEX: "0"}
    found["spec"]["nodeName"] = "n"
    share = pod_annotations.share_of(read(found), stock(16, 16))
    assert (share.units, share.cards) == (4, ("GPU-0",))


@pytest.mark.parametrize("count", [257, 20_000])
def test_a_bound_pod_with_more_containers_than_are_kept_counts_with_its_amount(count):
    containers = [*({"name": each} for each in many(count)), SHARE]
    found = read(body(containers=containers, nodeName="n"))
    share = pod_annotations.share_of(found, stock(16, 16))
    assert (share.is_unplaced, share.units) == (True, 4)
    with pytest.raises(RequestError, match="more than 256 containers"):
        pod_annotations.request_of(found)


amounts = st.sampled_from(["0", "1", "7", "2k", "9223372036854775807"])
several = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from("ab"), "resources": st.fixed_dictionaries(
            {"limits": st.dictionaries(st.sampled_from([RESOURCE_MEMORY, "cpu"]), amounts)}
        )},
        optional={"restartPolicy": st.just("Always")},
    ),
    min_size=1,
    max_size=4,
)  # fmt: skip


@given(several, several, st.booleans(), st.sampled_from(["", "x" * MOST_AT_ONCE]))
def test_any_number_of_containers_requests_the_same_as_the_containers_one_by_one(
    apps, inits, are_many, padding
):
    others = [{"name": each} for each in many(MOST_CONTAINERS)] if are_many else []
    raw = body(containers=[*others, *apps], initContainers=inits, nodeName="n")
    encoded = msgspec.json.encode(raw | {"padding": padding})
    kept = read_pod(encoded)
    whole = requests_of(read_brief(encoded).pod)
    assert resources_used(kept) == as_requests(whole)
    assert pod_annotations.units_of(kept) == min(
        MOST_NODE_UNITS, whole.get(RESOURCE_MEMORY, 0) // MILLI
    )
    assert bool(kept.excess) == are_many


def test_many_containers_that_have_no_status_yet_have_none():
    containers = [SHARE, *({"name": each} for each in many(300))]
    assert read(body(containers=containers)).statuses == ()


@pytest.mark.parametrize(("started", "has_run"), [("main", True), ("1", False), (None, False)])
def test_of_many_containers_it_is_known_whether_one_with_devices_has_run(started, has_run):
    states = {name: {"waiting": {}} for name in ["main", *many(300)]}
    states |= {started: {"running": {}}} if started else {}
    raw = body(containers=[*({"name": each} for each in many(300)), SHARE])
    raw["status"] = {
        "containerStatuses": [{"name": name, "state": state} for name, state in states.items()]
    }
    found = read(raw)
    assert found.runs == bool(started)
    assert any(each.has_run for each in pod_annotations.share_statuses(found)) == has_run


@pytest.mark.parametrize("name", [f"{RESOURCE_MEMORY}x", f"x{RESOURCE_MEMORY}"])
def test_a_resource_name_that_contains_ours_hides_no_request(name):
    decoy = {"name": "decoy", "resources": {"limits": {name: "0"}}}
    containers = [decoy, *({"name": each} for each in many(300)), SHARE]
    share = pod_annotations.share_of(read(body(containers=containers, nodeName="n")), stock(16, 16))
    assert share.units == 4


def test_a_pod_that_sets_its_cards_is_known_among_many_variables():
    variables = [{"name": each} for each in many(60_000)]
    plain = body(containers=[SHARE | {"env": variables}])
    sets = body(containers=[SHARE | {"env": [*variables, {"name": ENV_VISIBLE_DEVICES}]}])
    assert not pod_annotations.request_of(read(plain)).sets_cards
    assert pod_annotations.request_of(read(sets)).sets_cards


def test_an_annotation_that_adds_cards_is_found_in_a_pod_of_any_size():
    key, others = OPENING, dict.fromkeys(many(10_000), "x")
    opening = {key: "vendor.com/nic=0," * 10_000 + "nvidia.com/gpu=all"}
    for annotations in (opening, others | opening):
        found = read(body(metadata={"annotations": annotations}, runtimeClassName="nvidia"))
        assert pod_annotations.amounts_of(found).runtime_class == "nvidia"
        assert sum(map(len, found.annotations.values())) < 99
        with pytest.raises(RequestError, match=key):
            pod_annotations.request_of(found)


def test_a_policy_with_too_many_cards_is_rejected():
    for wish in (",".join(many(300)), "x" * 200_000):
        found = read(body(metadata={"annotations": {ANNOTATION_CARDS_NOT: wish}}))
        with pytest.raises(RequestError, match="card-uuids-not"):
            pod_annotations.request_of(found)


def test_the_most_tolerations_that_are_read_are_read():
    exactly = [{"key": str(each)} for each in range(MOST_TOLERATIONS)]
    assert len(read(body(tolerations=exactly)).spec.tolerations) == MOST_TOLERATIONS
    assert read(body(tolerations=[*exactly, {}])).excess


def test_the_most_containers_that_are_read_are_read():
    containers = [{"name": str(each), "resources": LIMITS} for each in range(MOST_CONTAINERS)]
    asked = pod_annotations.request_of(read(body(containers=containers)))
    assert asked.units == 4 * MOST_CONTAINERS


def test_messages_are_cut_to_the_limit():
    condition = {"type": "a", "status": "True", "message": "x" * MOST_MESSAGE * 2}
    status = {"phase": "Failed", "message": "y" * MOST_MESSAGE * 2, "conditions": [condition]}
    found = read({**body(), "status": status}).status
    assert found.message == "y" * MOST_MESSAGE
    assert [each.message for each in found.conditions] == ["x" * MOST_MESSAGE]


OTHERS = "other", "cdi.k8s.io/x", "nvidia.cdi.k8s.io/y", "nvidia.cdi.k8s.io"
words = st.dictionaries(
    st.sampled_from([*pod_reader.ANNOTATIONS, *pod_reader.LABELS, *OTHERS]),
    st.text(max_size=9) | st.just("x.com/y=z,nvidia.com/gpu=all"),
)
AMOUNTS = st.sampled_from(["1", 1, 2])
resources = st.fixed_dictionaries({}, optional={
    "limits": st.dictionaries(st.sampled_from(["cpu", RESOURCE_MEMORY]), AMOUNTS),
    "requests": st.none() | st.dictionaries(st.just(RESOURCE_MEMORY), st.just("3")),
})  # fmt: skip
containers = st.lists(
    st.fixed_dictionaries(
        {"name": st.text(max_size=3)},
        optional={
            "resources": st.none() | resources,
            "restartPolicy": st.just("Always"),
            "env": st.none()
            | st.lists(
                st.builds(
                    lambda name, value: {"name": name, "value": value},
                    st.sampled_from(["A", ENV_VISIBLE_DEVICES]),
                    st.sampled_from([None, "all", "void", "none"]),
                )
            ),
            "ports": st.none()
            | st.lists(st.sampled_from([{"containerPort": 80}, {"hostPort": 80}])),
        },
    ),
    max_size=3,
)
pods = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries(
            {"name": st.text(max_size=3)},
            optional={
                "annotations": st.none() | words,
                "labels": st.none() | words,
                "ownerReferences": st.none() | st.lists(st.just({"uid": "o", "controller": True})),
            },
        ),
        "spec": st.fixed_dictionaries(
            {},
            optional={
                "containers": st.none() | containers,
                "initContainers": containers,
                "tolerations": st.none() | st.lists(st.just({"key": "k", "operator": "Exists"})),
                "affinity": st.none() | st.just(requirement(2)),
                "nodeSelector": st.none() | words,
                "schedulingGates": st.just([{"name": "g"}]),
                "overhead": st.just({"cpu": "1"}),
                "nodeName": st.none() | st.just("n"),
                "priority": st.just(7),
                "runtimeClassName": st.sampled_from(["", "nvidia"]),
                "schedulingGroup": st.sampled_from([None, {}, {"podGroupName": "g"}]),
                "volumes": st.none()
                | st.lists(
                    st.sampled_from(
                        [{"emptyDir": {}}, {"persistentVolumeClaim": {}}, {"ephemeral": {}}]
                    )
                ),
                "resourceClaims": st.none() | st.lists(st.just({"name": "a"})),
                "resources": st.none() | st.just({"requests": {"cpu": "1"}}),
            },
        ),
        "status": st.just({"phase": "Pending", "conditions": [{"type": "a", "status": "True"}]}),
    }
)


@given(pods)
def test_a_large_pod_is_read_like_a_small_one(found):
    small = msgspec.json.encode(found)
    large = msgspec.json.encode(found | {"padding": "x" * MOST_AT_ONCE})
    assert read_pod(large) == read_pod(small)


WORDS = {
    "annotations": dict.fromkeys(pod_reader.ANNOTATIONS, "x"),
    "labels": dict.fromkeys(pod_reader.LABELS, "x"),
}
OURS = {"gpushare.aliyun.com/excess", "gpushare.aliyun.com/edited"}  # never in the API's JSON


def filled(kind: object, name: str = "") -> object:
    """Return JSON in which each field of a type of the model is set."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields = msgspec.structs.fields(kind)
        return {"name": "x"} | {
            each.encode_name: filled(each.type, each.encode_name)
            for each in fields
            if each.encode_name not in OURS
        }
    parts = [each for each in get_args(kind) if each not in {type(None), Ellipsis}]
    match get_origin(kind):
        case types.UnionType:
            return filled(parts[0], name)
        case builtins.tuple:
            return [filled(parts[0])]
        case builtins.dict:
            return WORDS.get(name, {"cpu": "1"})
    return {bool: True, int: 7}.get(kind, ENV_VISIBLE_DEVICES if name == "name" else "x")


def test_each_field_of_a_pod_is_read_whatever_its_size():
    found = filled(Pod)
    small, large = read(found), read(found | {"padding": "x" * MOST_AT_ONCE})
    assert large == small
    for part in (small, small.metadata, small.spec, *small.containers):
        unset = [each for each in part.__struct_fields__ if not getattr(part, each)]
        assert set(unset) <= {"excess", "was_edited"}


states = st.sampled_from(
    [
        None,
        {"waiting": {"reason": "CrashLoopBackOff"}},
        {"running": {"startedAt": "2026-11-21T20:00:00Z"}},
        {"terminated": {"startedAt": "2026-11-21T20:00:00Z"}},
        {"terminated": {"startedAt": "1970-01-01T00:00:00Z"}},  # could not be started
        {"terminated": {"startedAt": None}},
    ]
)
statuses = st.lists(
    st.fixed_dictionaries(
        {
            "name": st.sampled_from("ab"),
            "containerID": st.sampled_from(["", "containerd://1", None]),
            "state": states,
            "lastState": states,
        }
    ),
    max_size=3,
)


@given(statuses, statuses, st.sampled_from([None, "2026-11-21T20:00:00Z"]))
def test_what_has_started_run_and_runs_is_read_as_it_is(inits, apps, start_time):
    status = {
        "containerStatuses": apps,
        "initContainerStatuses": inits,
        "startTime": start_time,
    }
    found = body() | {"status": status}
    read_pods = read(found), msgspec.json.decode(msgspec.json.encode(found), type=Pod)
    short, full = (
        (
            pod.runs,
            pod.has_started,
            bool(pod.status.start_time),
            [(each.name, each.has_run, bool(each.container_id)) for each in pod.statuses],
        )
        for pod in read_pods
    )
    assert short == full


@pytest.mark.parametrize("padding", ["", "x" * MOST_AT_ONCE])
def test_ids_of_containers_are_kept_only_where_they_are_asked_for(padding):
    ids = {"a": f"containerd://{'a' * 64}", "b": "x" * 1000, "c": ""}
    found = [{"name": name, "containerID": each} for name, each in ids.items()]
    json = msgspec.json.encode(body() | {"status": {"containerStatuses": found}, "x": padding})
    kept, dropped = read_pod(json, keeps_ids=True), read_pod(json)
    assert [each.container_id for each in kept.statuses] == [ids["a"], "present", None]
    assert [each.container_id for each in dropped.statuses] == ["present", "present", None]


def test_all_our_resource_names_have_the_prefix():
    assert RESOURCES_BEGIN in RESOURCE_MEMORY.encode()
    assert RESOURCES_BEGIN in pod_annotations.RESOURCE_COUNT.encode()
