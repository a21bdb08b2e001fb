"""Find the JobSet that a TrainJob becomes, from its runtime and its patches (pure).

The rules are those of Trainer 2.2 (pkg/runtime), and the overrides of pod templates of 2.1.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from gpushare.contract import LABEL_POD_GROUP
from gpusharectl.manifests.fields import Field, Misplaced

GROUP: Final = "trainer.kubeflow.org"
_RUNTIMES: Final = {
    "TrainingRuntime": "trainingruntimes",
    "ClusterTrainingRuntime": "clustertrainingruntimes",
}
_STEP: Final = "trainer.kubeflow.org/trainjob-ancestor-step"
_NODE: Final = "node"  # the name of the trainer's container, and with MPI of the workers' job
# Lists whose items a patch merges by name (Kubernetes' patchMergeKey). Others it replaces.
_BY_NAME: Final = frozenset(
    {"containers", "initContainers", "volumes", "imagePullSecrets", "schedulingGates", "env"}
)

Runtimes = Mapping[tuple[str, str, str], Mapping[str, Any]]  # by kind, namespace and name


def runtimes_of(documents: Iterable[Mapping[str, Any]]) -> Runtimes:
    """Return the training runtimes among objects."""
    return {
        (each["kind"], _namespace(each), str(Field(each).at("metadata", "name").value)): each
        for each in documents
        if is_runtime(each)
    }


def is_runtime(document: Mapping[str, Any]) -> bool:
    return isinstance(kind := document.get("kind"), str) and kind in _RUNTIMES


def as_job_set(train_job: Field, name: str, runtimes: Runtimes) -> Field:
    """Return the JobSet that Trainer creates.

    Raises Misplaced if its runtime is not known; places in the runtime are below its runtimeRef.
    """
    runtime = _runtime(train_job, runtimes)
    overrides = train_job.at("spec", "podSpecOverrides")
    if overrides.value is not None:
        text = "is not read: write runtimePatches, or write the pods as a Job"
        raise Misplaced(overrides.place, text)
    place = train_job.at("spec", "runtimeRef").place
    spec = Field(runtime, place).at("spec")
    jobs = [
        dict(_job(each, spec.at("mlPolicy"), train_job, name, spec.at("podGroupPolicy")))
        for each in spec.at("template", "spec", "replicatedJobs").items()
    ]
    inner = {**spec.at("template", "spec").mapping(), "replicatedJobs": jobs}
    return Field({"kind": "JobSet", "spec": inner}, place)


def pod_group(
    workload: Field, name: str, runtimes: Runtimes, members: int
) -> dict[str, Any] | None:
    """Return the PodGroup that Trainer creates for the pods of a TrainJob.

    None for another workload, and if its runtime has no such policy. Raises as ``as_job_set``.
    """
    if workload.value["kind"] != "TrainJob":
        return None
    policy = Field(_runtime(workload, runtimes)).at("spec", "podGroupPolicy", "coscheduling")
    if policy.value is None:
        return None
    return {
        "apiVersion": "scheduling.x-k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": workload.at("metadata", "namespace").value},
        "spec": {"minMember": members},
    }


def _runtime(train_job: Field, runtimes: Runtimes) -> Mapping[str, Any]:
    ref = train_job.at("spec", "runtimeRef")
    kind, name = ref.at("kind").text("ClusterTrainingRuntime"), ref.at("name").text()
    namespace = "" if kind == "ClusterTrainingRuntime" else _namespace(train_job.value)
    found = runtimes.get((kind, namespace, name))
    if found is None:
        listed = _RUNTIMES.get(kind)
        cure = f"add it (kubectl get {listed}.{GROUP} {name} -o yaml), or " if listed else ""
        text = f"{kind} {name}, which has the pod template, is in no file: {cure}"
        raise Misplaced(ref.place, f"{text}write the pods as a Job")
    return found


def _namespace(document: Mapping[str, Any]) -> str:
    if document["kind"] == "ClusterTrainingRuntime":
        return ""
    return str(Field(document).at("metadata", "namespace").value or "default")


def _job(
    replicated: Field, policy: Field, train_job: Field, name: str, group_policy: Field
) -> Iterator[tuple[str, Any]]:
    """Yield the fields of one of the JobSet's replicated jobs."""
    part = replicated.at("name").text()
    template, place = replicated.at("template").mapping(), replicated.at("template").place
    for patch in _patches(train_job, part):
        template = _merged(template, patch)
    step = Field(template, place).at("metadata", "labels", _STEP).value
    nodes = _nodes(part, str(step), policy, train_job)
    job: Mapping[str, Any] = Field(template, place).at("spec").mapping()
    if nodes is not None:
        job = {**job, "parallelism": nodes, "completions": nodes}
    pod = Field(job, (*place, "spec")).at("template").mapping()
    mpi = policy.at("mpi")
    if step == "trainer" or (mpi.at("runLauncherAsNode").is_true() and part == _NODE):
        pod = _with_resources(pod, train_job.at("spec", "trainer", "resourcesPerNode"))
    if group_policy.at("coscheduling").value is not None:
        pod = _merged(pod, {"metadata": {"labels": {LABEL_POD_GROUP: name}}})
    yield from replicated.mapping().items()
    yield "template", {**template, "spec": {**job, "template": pod}}
    if step is not None:
        yield "replicas", 1


def _nodes(part: str, step: str, policy: Field, train_job: Field) -> int | None:
    """Return how many pods a job has if the runtime's job does not say it."""
    asked = train_job.at("spec", "trainer", "numNodes")
    mpi = policy.at("mpi")
    is_trainer = step == "trainer"
    if asked.value is not None and part == _NODE and mpi.value is not None:
        less = 1 if mpi.at("runLauncherAsNode").is_true() else 0
        return max(asked.number(1) - less, 1)
    if asked.value is not None and is_trainer and mpi.value is None:
        return asked.number(1)
    return policy.at("numNodes").number(1) if is_trainer and policy.value is not None else None


def _patches(train_job: Field, part: str) -> Iterator[Mapping[str, Any]]:
    """Yield what is merged into the template of a job."""
    for each in train_job.at("spec", "runtimePatches").items():
        jobs = each.at("trainingRuntimeSpec", "template", "spec", "replicatedJobs")
        for patch in jobs.items():
            if patch.at("name").value == part:
                yield patch.at("template").mapping()
    for each in train_job.at("spec", "podTemplateOverrides").items():
        if any(target.at("name").value == part for target in each.at("targetJobs").items()):
            pod = {key: each.at(key).mapping() for key in ("metadata", "spec")}
            yield {"spec": {"template": pod}}


def _with_resources(pod: Mapping[str, Any], resources: Field) -> Mapping[str, Any]:
    if resources.value is None:
        return pod
    spec = Field(pod).at("spec")
    containers = [
        {**each.mapping(), "resources": resources.mapping()}
        if each.at("name").value == _NODE
        else each.value
        for each in spec.at("containers").items()
    ]
    return {**pod, "spec": {**spec.mapping(), "containers": containers}}


def _merged(into: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object with a strategic merge patch applied."""
    found = dict(into)
    for key, new in patch.items():
        old = found.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            found[key] = _merged(old, new)
        elif key in _BY_NAME and isinstance(old, list) and isinstance(new, list):
            found[key] = _merged_by_name(old, new)
        else:
            found[key] = new
    return found


def _merged_by_name(old: list[Any], new: list[Any]) -> list[Any]:
    named = {str(Field(each).at("name").value): each for each in old}
    for each in new:
        name = str(Field(each).at("name").value)
        before = named.get(name)
        if isinstance(before, dict) and isinstance(each, dict):
            each = _merged(before, each)  # noqa: PLW2901
        named[name] = each
    return list(named.values())
