"""The pods of a TrainJob are those of its runtime, with what the TrainJob changes."""

import pytest

from gpushare.groups.model import Source
from tests.unit.gpusharectl.manifests.test_workloads import JOB, SPEC, document, refused, scenario

GROUP = "trainer.kubeflow.org/v1alpha1"
TRAINER = {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}
PLAIN = {"containers": [{"name": "node"}, {"name": "other"}]}


def runtime(*jobs, kind="ClusterTrainingRuntime", **more):
    jobs = jobs or (job("node"),)
    spec = {"template": {"spec": {"replicatedJobs": list(jobs)}}, **more}
    return document(kind, GROUP, spec, name="torch")


def job(name, metadata=TRAINER, spec=PLAIN):
    template = {"metadata": metadata, "spec": {"template": {"spec": spec}}}
    return {"name": name, "template": template}


def train_job(trainer=None, kind=None, **more):
    ref = {"name": "torch", **({"kind": kind} if kind else {})}
    return document("TrainJob", GROUP, {"runtimeRef": ref, "trainer": trainer, **more})


ASKS = {"numNodes": 2, "resourcesPerNode": {"limits": {"aliyun.com/gpu-mem": 8}}}


def pods(*documents):
    return [event.pod for event in scenario(*documents).pods]


def names(*documents):
    return [each.metadata.name for each in pods(*documents)]


def test_the_trainer_has_as_many_nodes_with_as_much_memory_as_the_job_says():
    found = pods(train_job(ASKS), runtime(job("node"), job("data", {}, SPEC)))
    assert [each.metadata.name for each in found] == ["x-node-0-0", "x-node-0-1", "x-data-0-0"]
    assert [each.labels[JOB] for each in found] == ["0", "1", "0"]
    node, other = found[0].containers
    assert node.limits == {"aliyun.com/gpu-mem": 8}
    assert not other.limits


def test_without_numbers_of_its_own_the_runtime_says_them():
    policy = {"numNodes": 3, "torch": {}}
    assert len(pods(train_job(), runtime(job("node", spec=SPEC), mlPolicy=policy))) == 3
    assert (
        len(pods(train_job({"numNodes": 1}), runtime(job("node", spec=SPEC), mlPolicy=policy))) == 1
    )


def test_the_launcher_of_mpi_is_one_of_the_nodes_if_the_runtime_says_so():
    jobs = job("launcher"), job("node", {})
    found = names(train_job(ASKS), runtime(*jobs, mlPolicy={"mpi": {"runLauncherAsNode": True}}))
    assert found == ["x-launcher-0-0", "x-node-0-0"]
    jobs = job("launcher"), job("node", {}, SPEC)
    found = names(train_job({"numNodes": 2}), runtime(*jobs, mlPolicy={"mpi": {}}))
    assert found == ["x-node-0-0", "x-node-0-1"]


LABELS = {"pod-group.scheduling.sigs.k8s.io/name": "g"}
PATCH = {
    "metadata": {"labels": LABELS},
    "spec": {"nodeSelector": {"a": "b"}, "containers": [{"name": "node", "env": []}]},
}


@pytest.mark.parametrize(
    "more",
    [
        {
            "runtimePatches": [
                {
                    "manager": "example.com/gang",
                    "trainingRuntimeSpec": {
                        "template": {
                            "spec": {
                                "replicatedJobs": [
                                    {"name": "node", "template": {"spec": {"template": PATCH}}}
                                ]
                            }
                        }
                    },
                }
            ]
        },
        {"podTemplateOverrides": [{"targetJobs": [{"name": "node"}], **PATCH}]},
    ],
)
def test_patches_of_the_pods_are_applied(more):
    (node, other) = pods(
        train_job(ASKS | {"numNodes": 1}, **more), runtime(job("node"), job("b", {}, SPEC))
    )
    assert {key: node.labels[key] for key in LABELS} == LABELS
    assert node.spec.node_selector == {"a": "b"}
    assert [each.name for each in node.containers] == ["node", "other"]
    assert not other.spec.node_selector


def test_the_policy_of_a_runtime_makes_each_job_a_gang_of_all_its_pods():
    policy = {"coscheduling": {"scheduleTimeoutSeconds": 60}}
    found = scenario(train_job(ASKS), runtime(podGroupPolicy=policy))
    [group] = found.pod_groups
    assert (group.key.source, group.key.name, group.minimum) == (Source.POD_GROUP, "x", 2)
    assert {event.pod.labels["scheduling.x-k8s.io/pod-group"] for event in found.pods} == {"x"}


@pytest.mark.parametrize(
    ("documents", "told"),
    [
        (
            [train_job(ASKS)],
            (
                "ClusterTrainingRuntime torch, which has the pod template, is in no file: add it "
                "(kubectl get clustertrainingruntimes.trainer.kubeflow.org torch -o yaml), or "
                "write the pods as a Job"
            ),
        ),
        ([train_job(ASKS), runtime(kind="TrainingRuntime")], "is in no file"),
        ([train_job(ASKS, "Other"), runtime()], "is in no file: write the pods as a Job"),
        ([train_job(ASKS, podSpecOverrides=[]), runtime()], "podSpecOverrides: is not read"),
        ([train_job({"numNodes": "2"}), runtime()], "spec.trainer.numNodes: '2': write a number"),
        ([train_job(ASKS), runtime(mlPolicy=7)], "runtimeRef.spec.mlPolicy: expected a mapping"),
        (
            [train_job(ASKS, runtimePatches=[{"trainingRuntimeSpec": 4}]), runtime()],
            "spec.runtimePatches[0].trainingRuntimeSpec: expected a mapping, found 4",
        ),
    ],
)
def test_a_job_whose_pods_are_not_known_is_refused(documents, told):
    assert told in refused(*documents)


def test_a_runtime_of_the_namespace_is_found_by_its_kind():
    assert names(train_job(ASKS, "TrainingRuntime"), runtime(kind="TrainingRuntime"))
