"""Properties of a pod that follow from several of its fields."""

import msgspec
import pytest

from gpushare.contract import GATE_ADMISSION
from gpushare.objects.model import Pod
from gpushare.objects.pod_reader import MOST_AT_ONCE, read_pod


def read(padding: int = 0, **spec) -> Pod:
    found = {"metadata": {"name": "p"}, "spec": spec, "padding": "x" * padding}
    return read_pod(msgspec.json.encode(found))


def between(kind: str, when: str) -> dict:
    return {"affinity": {kind: {f"{when}DuringSchedulingIgnoredDuringExecution": [{}]}}}


def spread(when: str) -> dict:
    return {"topologySpreadConstraints": [{"whenUnsatisfiable": when}]}


def port(**port) -> dict:
    return {"containers": [{"name": "a"}, {"name": "b", "ports": [port]}]}


PLAIN = [
    {},
    {"nodeSelector": {"a": "b"}, "tolerations": [{"operator": "Exists"}]},
    {"volumes": [{"emptyDir": {}}, {"configMap": {}}, {"hostPath": {}}, {"csi": {}}]},
    port(containerPort=80),
    between("podAffinity", "preferred"),
    between("podAntiAffinity", "preferred"),
    spread("ScheduleAnyway"),
    {"resourceClaims": []},
]
NOT_PLAIN = [
    {"volumes": [{"emptyDir": {}}, {"persistentVolumeClaim": {"claimName": "a"}}]},
    {"volumes": [{"ephemeral": {}}]},
    {"volumes": [{"awsElasticBlockStore": {"volumeID": "a"}}]},
    port(containerPort=80, hostPort=80),
    {"initContainers": port(hostPort=80)["containers"]},
    between("podAffinity", "required"),
    between("podAntiAffinity", "required"),
    spread("DoNotSchedule"),
    {"resourceClaims": [{"name": "a"}]},
]


@pytest.mark.parametrize("padding", [0, MOST_AT_ONCE])
def test_a_pod_is_plain_unless_kube_scheduler_may_reject_a_node_by_a_rule_of_its_own(padding):
    assert all(read(padding, **spec).is_plain for spec in PLAIN)
    assert not any(read(padding, **spec).is_plain for spec in NOT_PLAIN)


@pytest.mark.parametrize(
    ("names", "ours", "foreign"),
    [
        ([], False, False),
        ([GATE_ADMISSION], True, False),
        (["kueue.x-k8s.io/admission"], False, True),
        (["kueue.x-k8s.io/admission", GATE_ADMISSION], True, True),
    ],
)
def test_our_gate_is_told_from_those_of_others(names, ours, foreign):
    found = read(schedulingGates=[{"name": name} for name in names])
    assert (found.has_our_gate, found.has_foreign_gate) == (ours, foreign)


def test_the_pod_group_of_kubernetes_is_read():
    assert read(schedulingGroup={"podGroupName": "train"}).pod_group == "train"
    assert read(schedulingGroup=None).pod_group == read().pod_group == ""
