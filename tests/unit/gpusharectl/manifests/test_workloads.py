"""Which pods a workload creates: their names, numbers and order are those of its controller."""

import pytest
import yaml

from gpushare.errors import SettingsError
from gpusharectl.manifests.yaml_lines import read
from gpusharectl.simulate.scenario import build

SPEC = {"containers": [{"name": "node", "resources": {"limits": {"aliyun.com/gpu-mem": 8}}}]}
TEMPLATE = {"metadata": {"labels": {"a": "b"}}, "spec": SPEC}
JOB = "batch.kubernetes.io/job-completion-index"
REPLICA = "training.kubeflow.org/replica-index"
ROLE = "training.kubeflow.org/job-role"
GROUP, WORKER = (f"leaderworkerset.sigs.k8s.io/{each}-index" for each in ("group", "worker"))


def document(kind, version, spec, name="x"):
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}


def scenario(*documents):
    return build(read("x.yaml", yaml.safe_dump_all(documents).encode()))


def made(*documents):
    """Return the labels, without the template's own, by name."""
    pods = [event.pod for event in scenario(*documents).pods]
    return {
        each.metadata.name: {key: value for key, value in each.labels.items() if key != "a"}
        for each in pods
    }


def refused(*documents):
    with pytest.raises(SettingsError) as caught:
        scenario(*documents)
    return str(caught.value)


def kubeflow(kind, key, more=None, **replicas):
    specs = {part: {"replicas": count, "template": TEMPLATE} for part, count in replicas.items()}
    version = "kubeflow.org/v2beta1" if kind == "MPIJob" else "kubeflow.org/v1"
    return document(kind, version, {key: specs, **(more or {})})


def job_set(*jobs, **more):
    return document("JobSet", "jobset.x-k8s.io/v1alpha2", {"replicatedJobs": list(jobs), **more})


def replicated(name, replicas=1, **spec):
    return {
        "name": name,
        "replicas": replicas,
        "template": {"spec": {**spec, "template": TEMPLATE}},
    }


def group_set(replicas, size, version="leaderworkerset.x-k8s.io/v1", **more):
    inner = {"size": size, "workerTemplate": TEMPLATE}
    spec = {"replicas": replicas, "leaderWorkerTemplate": inner, **more}
    return document("LeaderWorkerSet", version, spec)


def ray(*groups, kind="RayCluster", path=None, **more):
    spec = {"headGroupSpec": {"template": TEMPLATE}, "workerGroupSpecs": list(groups)}
    return document(kind, "ray.io/v1", {path: spec} if path else {**spec, **more})


def ray_group(name, **numbers):
    return {"groupName": name, "template": TEMPLATE, **numbers}


RAY = ("x-head", "x-a-worker-0", "x-a-worker-1", "x-b-worker-0", "x-b-worker-1", "x-c-worker-0")


@pytest.mark.parametrize(
    ("workload", "expected"),
    [
        (
            document(
                "Job",
                "batch/v1",
                {"completionMode": "Indexed", "parallelism": 2, "template": TEMPLATE},
            ),
            {"x-0": {JOB: "0"}, "x-1": {JOB: "1"}},
        ),
        (
            job_set(replicated("w", 2, parallelism=2), replicated("c")),
            {
                "x-w-0-0": {JOB: "0"},
                "x-w-0-1": {JOB: "1"},
                "x-w-1-0": {JOB: "0"},
                "x-w-1-1": {JOB: "1"},
                "x-c-0-0": {JOB: "0"},
            },
        ),
        (
            kubeflow("PyTorchJob", "pytorchReplicaSpecs", Master=1, Worker=2),
            {
                "x-master-0": {REPLICA: "0", ROLE: "master"},
                "x-worker-0": {REPLICA: "0"},
                "x-worker-1": {REPLICA: "1"},
            },
        ),
        (
            kubeflow("PyTorchJob", "pytorchReplicaSpecs", Worker=2),
            {"x-worker-0": {REPLICA: "0", ROLE: "master"}, "x-worker-1": {REPLICA: "1"}},
        ),
        (
            kubeflow("TFJob", "tfReplicaSpecs", Chief=1, PS=1),
            {"x-chief-0": {REPLICA: "0", ROLE: "master"}, "x-ps-0": {REPLICA: "0"}},
        ),
        (
            kubeflow("XGBoostJob", "xgbReplicaSpecs", Master=None),
            {"x-master-0": {REPLICA: "0", ROLE: "master"}},
        ),
        (
            kubeflow("MPIJob", "mpiReplicaSpecs", Launcher=1, Worker=2),
            {
                "x-launcher": {ROLE: "launcher"},
                "x-worker-0": {ROLE: "worker", REPLICA: "0"},
                "x-worker-1": {ROLE: "worker", REPLICA: "1"},
            },
        ),
        (
            kubeflow(
                "MPIJob", "mpiReplicaSpecs", {"runLauncherAsWorker": True}, Launcher=1, Worker=1
            ),
            {
                "x-launcher": {ROLE: "launcher", REPLICA: "0"},
                "x-worker-0": {ROLE: "worker", REPLICA: "1"},
            },
        ),
        (
            group_set(2, 2),
            {
                "x-0": {GROUP: "0", WORKER: "0"},
                "x-1": {GROUP: "1", WORKER: "0"},
                "x-0-1": {GROUP: "0", WORKER: "1"},
                "x-1-1": {GROUP: "1", WORKER: "1"},
            },
        ),
        (group_set(None, None), {"x-0": {GROUP: "0", WORKER: "0"}}),
        (
            ray(
                ray_group("a", replicas=1, numOfHosts=2),
                ray_group("b", replicas=1, minReplicas=2),
                ray_group("c", replicas=3, maxReplicas=1),
                ray_group("d"),
                ray_group("e", replicas=2, suspend=True),
            ),
            {name: {} for name in RAY},
        ),
        (ray(kind="RayJob", path="rayClusterSpec"), {"x-head": {}}),
        (ray(kind="RayService", path="rayClusterConfig"), {"x-head": {}}),
    ],
)
def test_pods_are_named_and_labelled_as_by_their_controller(workload, expected):
    assert made(workload) == expected
    listed = {"apiVersion": "v1", "kind": "List", "items": [workload]}
    assert made(listed) == expected


@pytest.mark.parametrize(
    "workload",
    [
        job_set(replicated("w"), suspend=True),
        kubeflow("TFJob", "tfReplicaSpecs", {"runPolicy": {"suspend": True}}, Worker=1),
        ray(suspend=True),
    ],
)
def test_a_suspended_workload_creates_no_pods_and_is_named(workload):
    found = scenario(workload)
    assert not found.pods
    [line] = found.not_read.lines()
    assert line == f"{workload['kind']} x: suspended, so it creates no pods. Remove suspend: true"


WRITE = "write a number of pods from 0 to 100000"
PART = "spec.tfReplicaSpecs.Worker"


@pytest.mark.parametrize(
    ("workload", "told"),
    [
        (
            kubeflow("TFJob", "tfReplicaSpecs", Worker="2"),
            f"{PART}.replicas: '2': {WRITE}",
        ),
        (kubeflow("TFJob", "tfReplicaSpecs", Worker=-1), f"{PART}.replicas: -1: {WRITE}"),
        (kubeflow("TFJob", "tfReplicaSpecs", Worker=10**9), f"{PART}.replicas: 1000000000: "),
        (job_set(replicated("w", 400, parallelism=400)), "more than 100000 pods are created"),
        (job_set(*[replicated(f"w{n}", 60_000) for n in range(2)]), "more than 100000 pods"),
        (group_set(99_999, 99_999), "more than 100000 pods"),
        (ray(ray_group("a", replicas=99_999, numOfHosts=99_999)), "more than 100000 pods"),
        (job_set({"name": "w"}), "spec.replicatedJobs[0].template.spec.template: is missing"),
        (job_set("w"), "spec.replicatedJobs[0]: expected a mapping"),
        (job_set(replicated("w", completionMode=["Indexed"])), "completionMode: expected a text"),
        (document("MPIJob", "kubeflow.org/v2beta1", {"mpiReplicaSpecs": []}), "expected a mapping"),
        (ray(kind="RayJob", path="other"), "spec.rayClusterSpec: is missing"),
        (document("LeaderWorkerSet", "leaderworkerset.x-k8s.io/v1", None), "is missing"),
        (document("LeaderWorkerSet", "leaderworkerset.x-k8s.io/v1", 5), "spec: expected a mapping"),
        (kubeflow("PyTorchJob", "pytorchReplicaSpec", Worker=1), "expected a pod template"),
    ],
)
def test_a_workload_that_cannot_be_read_is_refused_by_its_place(workload, told):
    found = refused(workload)
    assert found.startswith("x.yaml:")
    assert told in found


def test_keys_of_the_pods_are_checked_in_any_workload():
    wrong = {"spec": {**SPEC, "runtimeClass": "nvidia"}}
    workload = kubeflow("TFJob", "tfReplicaSpecs", Worker=1)
    workload["spec"]["tfReplicaSpecs"]["Worker"]["template"] = wrong
    assert "runtimeClass: there is no such key: did you mean runtimeClassName?" in refused(workload)


def test_a_name_that_is_generated_counts_only_without_another():
    one = group_set(1, 1)
    one["metadata"] = {"generateName": "y-"}
    assert list(made(one)) == ["y-0"]
    one["metadata"]["name"] = "x"
    assert list(made(one)) == ["x-0"]


LABELS = {
    "pod-group.scheduling.sigs.k8s.io/name": "g",
    "pod-group.scheduling.sigs.k8s.io/min-available": "2",
}


@pytest.mark.parametrize(
    ("workload", "first"),
    [
        (group_set(1, 2, startupPolicy="LeaderReady"), ["x-0"]),
        (
            kubeflow(
                "MPIJob",
                "mpiReplicaSpecs",
                {"launcherCreationPolicy": "WaitForWorkersReady"},
                Launcher=1,
                Worker=1,
            ),
            ["x-worker-0"],
        ),
        (
            job_set(
                replicated("a"), replicated("b"), startupPolicy={"startupPolicyOrder": "InOrder"}
            ),
            ["x-a-0-0"],
        ),
        (
            job_set(
                replicated("a"),
                {**replicated("b"), "dependsOn": [{"name": "a", "status": "Ready"}]},
            ),
            ["x-a-0-0"],
        ),
    ],
)
def test_members_that_come_when_another_is_ready_never_come_to_their_gang(workload, first):
    assert len(scenario(workload).pods) == 2
    labelled = yaml.safe_load(yaml.safe_dump(workload))
    _label(labelled)
    assert [event.pod.metadata.name for event in scenario(labelled).pods] == first


def _label(value):
    """Set the gang's labels in each pod template."""
    if isinstance(value, dict):
        if isinstance(value.get("spec"), dict) and "containers" in value["spec"]:
            value["metadata"] = {"labels": LABELS}
        for each in value.values():
            _label(each)
    elif isinstance(value, list):
        for each in value:
            _label(each)
