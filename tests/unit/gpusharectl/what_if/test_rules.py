"""Which pods of a file are one gang."""

import pytest
import yaml

from gpushare.errors import SettingsError
from gpusharectl.manifests.manifest import manifest
from gpusharectl.what_if.rules import gang_of
from tests.markdown import ROOT

LABELS = {
    "pod-group.scheduling.sigs.k8s.io/name": "train",
    "pod-group.scheduling.sigs.k8s.io/min-available": "3",
}
IN_GROUP = {"scheduling.x-k8s.io/pod-group": "train"}


def job(name, labels, parallelism=1, namespace="ml"):
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "m"}]}}
    return {
        "kind": "Job",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"parallelism": parallelism, "template": template},
    }


def pod_group(spec, version="scheduling.x-k8s.io/v1alpha1", namespace="ml"):
    meta = {"name": "train", "namespace": namespace}
    return {"kind": "PodGroup", "apiVersion": version, "metadata": meta, "spec": spec}


def found(*documents):
    read = manifest(yaml.safe_dump_all(documents).encode(), "x.yaml")
    return gang_of(read.workloads, read.pod_groups)


def test_all_workloads_of_one_gang_are_its_parts():
    gang = found(job("workers", LABELS, 4), job("server", LABELS))
    assert gang.what == "gang train (Job workers, 4 times; Job server)"
    body = gang.body(part.pod for part in gang.parts)
    assert [part["count"] for part in body["pods"]] == [4, 1]
    assert "minimum" not in body


@pytest.mark.parametrize(
    "documents",
    [
        [job("a", {})],
        [job("a", LABELS), job("b", {})],
        [job("a", LABELS), job("b", LABELS, namespace="other")],
        [job("a", LABELS), job("b", IN_GROUP)],
    ],
)
def test_other_pods_are_no_gang(documents):
    assert found(*documents) is None


def test_a_pod_group_in_the_file_states_the_minimum():
    gang = found(job("a", IN_GROUP, 4), pod_group({"minMember": 2}))
    assert gang.body([gang.parts[0].pod])["minimum"] == 2
    gang = found(job("a", IN_GROUP, 4), pod_group({"minMember": 2}, namespace=""))
    assert gang.pod_group.minimum == 2
    for other in ({"namespace": "other"}, {"version": "scheduling.volcano.sh/v1beta1"}):
        assert found(job("a", IN_GROUP, 4), pod_group({"minMember": 2}, **other)).pod_group is None


def stateful_set(labels, replicas, **spec):
    found = job("set", labels)
    found["spec"] |= {"replicas": replicas, **spec}
    return found | {"kind": "StatefulSet"}


def counts(*documents):
    gang = found(*documents)
    return [part["count"] for part in gang.body(part.pod for part in gang.parts)["pods"]]


def test_of_a_set_that_waits_for_each_pod_to_be_ready_only_the_first_is_asked_about():
    assert counts(stateful_set(LABELS, 3)) == [1]
    assert counts(stateful_set(LABELS, 3), job("server", LABELS)) == [1, 1]
    assert counts(stateful_set(IN_GROUP, 3), pod_group({"minMember": 2})) == [1]
    gang = found(stateful_set(IN_GROUP, 3))
    body = gang.body(part.pod for part in gang.parts)
    assert (body["pods"][0]["count"], body["minimum"]) == (1, 3)


def test_of_a_set_whose_gang_starts_with_the_first_pod_all_are_asked_about():
    assert counts(stateful_set(LABELS, 3, podManagementPolicy="Parallel")) == [3]
    assert counts(stateful_set(LABELS, 3), job("servers", LABELS, 2)) == [3, 2]
    assert counts(stateful_set(IN_GROUP, 3), pod_group({"minMember": 1})) == [3]


def test_a_native_pod_group_states_the_zone_too():
    pods = job("a", {}, 4)
    pods["spec"]["template"]["spec"]["schedulingGroup"] = {"podGroupName": "train"}
    spec = {
        "schedulingPolicy": {"gang": {"minCount": 3}},
        "schedulingConstraints": {"topology": [{"key": "rack"}]},
    }
    gang = found(pods, pod_group(spec, "scheduling.k8s.io/v1beta1"))
    body = gang.body([gang.parts[0].pod])
    assert (body["minimum"], body["zoneKey"]) == (3, "rack")


def test_a_pod_group_without_a_minimum_is_an_error():
    with pytest.raises(SettingsError, match="PodGroup train states no minimum: write minMember"):
        found(job("a", IN_GROUP), pod_group({}))


SAMPLES = ROOT / "daemonset/samples"


@pytest.mark.parametrize(
    ("sample", "what", "expected"),
    [
        ("mpijob", "MPIJob gang-mpijob (Launcher); MPIJob gang-mpijob (Worker), 3 times", [1, 3]),
        ("jobset", "JobSet gang-jobset (workers), 4 times", [4]),
        ("trainjob", "TrainJob gang-trainjob (node), 4 times", [4]),
        (
            "raycluster",
            "RayCluster gang-raycluster (head); RayCluster gang-raycluster (gpu), 3 times",
            [1, 3],
        ),
    ],
)
def test_the_pods_of_a_job_of_another_kind_are_one_gang(sample, what, expected):
    read = manifest((SAMPLES / f"gang-{sample}.yaml").read_bytes(), "x.yaml")
    gang = gang_of(read.workloads, read.pod_groups)
    assert gang.what == f"gang gang-{sample} ({what})"
    asked = gang.body(part.pod for part in gang.parts)["pods"]
    assert [part["count"] for part in asked] == expected


def test_several_groups_are_several_gangs_and_only_one_of_them_is_checked():
    text = (SAMPLES / "gang-leaderworkerset.yaml").read_text()
    read = manifest(text.encode(), "x.yaml")
    with pytest.raises(SettingsError, match="has 2 groups, and each is a gang of its own: write"):
        gang_of(read.workloads, read.pod_groups)
    read = manifest(text.replace("replicas: 2", "replicas: 1").encode(), "x.yaml")
    assert gang_of(read.workloads, read.pod_groups).key.name == "gang-leaderworkerset-0"


@pytest.mark.parametrize(
    ("sample", "policy", "late", "kind", "expected"),
    [
        ("mpijob", "AtStartup", "WaitForWorkersReady", "MPIJob", [3]),
        ("leaderworkerset", "LeaderCreated", "LeaderReady", "LeaderWorkerSet", [1]),
    ],
)
def test_only_pods_that_exist_before_another_is_ready_are_asked_about(
    sample, policy, late, kind, expected
):
    text = (SAMPLES / f"gang-{sample}.yaml").read_text().replace("replicas: 2", "replicas: 1")
    read = manifest(text.replace(f"Policy: {policy}", f"Policy: {late}").encode(), "x.yaml")
    gang = gang_of(read.workloads, read.pod_groups)
    asked = gang.body(part.pod for part in gang.parts)["pods"]
    assert [part["count"] for part in asked] == expected
    assert [each["pod"]["metadata"]["ownerReferences"][0]["kind"] for each in asked] == [kind]
