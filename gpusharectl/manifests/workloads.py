"""Find the pods that a workload creates, for each kind that is read (pure).

``KINDS`` has a row for each kind. Names, numbers and labels of the pods are those that the kind's
controller gives: of Kubernetes, JobSet 0.12, LeaderWorkerSet 0.9, Training Operator 1.9, MPI
Operator 0.8, KubeRay 1.6 and Trainer 2.2. Random endings of names are left out.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from gpushare import contract
from gpusharectl.manifests import train_jobs
from gpusharectl.manifests.fields import MOST_PODS, Field, Misplaced

Named = tuple[str, Mapping[str, str]]  # a pod's name, and labels that its controller adds
_Names = Callable[[int], Named]


@dataclass(frozen=True, slots=True)
class Pods:
    """Pods that a workload creates from one template.

    ``named`` returns the name and labels of each number from 0. ``at_once`` of the ``count`` exist
    before another pod of the workload is Ready. ``part`` names the template if the workload may
    have several. Of ``groups``, each has the same number of these pods, and is a gang of its own.
    """

    template: Field
    count: int
    named: _Names
    at_once: int
    part: str = ""
    groups: int = 1


class Kind(NamedTuple):
    """``group`` is the API group, ``suspend`` where a workload says that it creates no pods yet."""

    group: str
    pods: Callable[[Field, str], Iterator[Pods]]
    suspend: tuple[str, ...] = ()


class Made(NamedTuple):
    """The pods of a workload by template, and the PodGroup that its controller creates, as JSON.

    ``owner`` is their owner reference if some exist only when another one is Ready.
    """

    pods: tuple[Pods, ...]
    pod_group: dict[str, Any] | None
    owner: dict[str, Any] | None


def made_by(workload: Field, name: str, runtimes: train_jobs.Runtimes) -> Made:
    """Return what a workload of one of KINDS creates; of a TrainJob from its runtime.

    Raises Misplaced for a missing template or runtime, for a field of a wrong type, and for more
    than MOST_PODS.
    """
    kind = workload.value["kind"]
    is_train_job = KINDS[kind].group == train_jobs.GROUP
    source = train_jobs.as_job_set(workload, name, runtimes) if is_train_job else workload
    found = []
    left = MOST_PODS
    for pods in KINDS[kind].pods(source, name):
        template = pods.template
        for each in (template, template.at("spec")):
            if not isinstance(each.value, dict):
                raise Misplaced(each.place, "is missing: expected the pods' template")
        left -= pods.count
        if left < 0:
            raise Misplaced(template.place, f"more than {MOST_PODS} pods are created: write fewer")
        found.append(pods)
    if not found:
        raise Misplaced(source.at("spec").place, "expected a pod template, found none")
    group = train_jobs.pod_group(workload, name, runtimes, MOST_PODS - left)
    is_late = any(each.at_once < each.count for each in found)
    owner = {"kind": kind, "name": name, "uid": f"{kind} {name}", "controller": True}
    return Made(tuple(found), group, owner if is_late else None)


def kind_of(workload: Mapping[str, Any]) -> Kind | None:
    """Return the row of an object's kind; None for a kind that is not read.

    An object without an apiVersion may be of any group.
    """
    kind = KINDS.get(str(workload.get("kind")))
    version = workload.get("apiVersion")
    is_other = kind is not None and version and str(version).rpartition("/")[0] != kind.group
    return None if is_other else kind


def is_suspended(workload: Field) -> bool:
    """Return whether a workload creates no pods until somebody changes that."""
    path = KINDS[workload.value["kind"]].suspend
    return bool(path) and workload.at(*path).is_true()


def requests_memory(value: Any) -> bool:
    """Return whether an object has a container, at any place, that requests GPU memory.

    Not every kind calls its containers so: only their resources are alike.
    """
    if isinstance(value, list):
        return any(map(requests_memory, value))
    if not isinstance(value, dict):
        return False
    amounts = (value.get(key) for key in ("limits", "requests"))
    if any(isinstance(each, dict) and contract.RESOURCE_MEMORY in each for each in amounts):
        return True
    return any(map(requests_memory, value.values()))


def _numbered(name: str, label: str = "", *, first: int = 0) -> _Names:
    """Name pods ``name-0`` and so on; ``label`` has their number."""

    def named(number: int) -> Named:
        return f"{name}-{number + first}", {label: str(number)} if label else {}

    return named


def _replicas(workload: Field, name: str) -> Iterator[Pods]:
    spec = workload.at("spec")
    count = spec.at("replicas").number(1)
    yield Pods(spec.at("template"), count, _numbered(name, first=1), count)


def _stateful_set(workload: Field, name: str) -> Iterator[Pods]:
    spec = workload.at("spec")
    count = spec.at("replicas").number(1)
    at_once = count if spec.at("podManagementPolicy").value == "Parallel" else min(count, 1)
    yield Pods(spec.at("template"), count, _numbered(name, contract.LABEL_POD_INDEX), at_once)


def _job(workload: Field, name: str) -> Iterator[Pods]:
    spec = workload.at("spec")
    count = _parallelism(spec)
    is_indexed = spec.at("completionMode").value == "Indexed"
    named = _numbered(name, contract.LABEL_JOB_INDEX) if is_indexed else _numbered(name, first=1)
    yield Pods(spec.at("template"), count, named, count)


def _parallelism(job: Field) -> int:
    return min(job.at("parallelism").number(1), job.at("completions").number(MOST_PODS))


def _cron_job(workload: Field, name: str) -> Iterator[Pods]:
    yield from _job(workload.at("spec", "jobTemplate"), name)


def _pod_template(workload: Field, name: str) -> Iterator[Pods]:
    yield Pods(workload.at("template"), 1, _numbered(name, first=1), 1)


def _job_set(workload: Field, name: str) -> Iterator[Pods]:
    spec = workload.at("spec")
    is_in_order = spec.at("startupPolicy", "startupPolicyOrder").value == "InOrder"
    for number, each in enumerate(spec.at("replicatedJobs").items()):
        part, job = each.at("name").text(), each.at("template", "spec")
        of_one = _parallelism(job)
        count = each.at("replicas").number(1) * of_one
        waits = (is_in_order and number > 0) or any(True for _ in each.at("dependsOn").items())
        is_indexed = job.at("completionMode").text("Indexed") == "Indexed"
        named = _job_set_names(f"{name}-{part}", of_one, is_indexed=is_indexed)
        yield Pods(job.at("template"), count, named, 0 if waits else count, part)


def _job_set_names(name: str, of_one: int, *, is_indexed: bool) -> _Names:
    def named(number: int) -> Named:
        job, index = divmod(number, max(1, of_one))  # without pods, its template is still read
        labels = {contract.LABEL_JOB_INDEX: str(index)} if is_indexed else {}
        return f"{name}-{job}-{index}", labels

    return named


def _leader_worker_set(workload: Field, name: str) -> Iterator[Pods]:
    spec = workload.at("spec")
    inner = spec.at("leaderWorkerTemplate")
    groups, workers = spec.at("replicas").number(1), inner.at("size").number(1) - 1
    worker = inner.at("workerTemplate")
    leader = inner.at("leaderTemplate")

    def leaders(number: int) -> Named:
        labels = {contract.LABEL_WORKER_GROUP: str(number), contract.LABEL_WORKER_INDEX: "0"}
        return f"{name}-{number}", labels

    def rest(number: int) -> Named:
        group, index = divmod(number, workers)
        labels = {
            contract.LABEL_WORKER_GROUP: str(group),
            contract.LABEL_WORKER_INDEX: str(index + 1),
        }
        return f"{name}-{group}-{index + 1}", labels

    yield Pods(
        worker if leader.value is None else leader, groups, leaders, groups, "leader", groups
    )
    if workers > 0:
        count = groups * workers
        at_once = 0 if spec.at("startupPolicy").value == "LeaderReady" else count
        yield Pods(worker, count, rest, at_once, "worker", groups)


def _kubeflow(key: str, *masters: str) -> Callable[[Field, str], Iterator[Pods]]:
    """Return how to read a job of Kubeflow whose replicas are at ``key`` of its spec.

    The ``masters`` have that role, or else worker 0 has it.
    """

    def pods(workload: Field, name: str) -> Iterator[Pods]:
        replicas = list(workload.at("spec", key).fields())
        has_master = any(part.lower() in masters for part, _ in replicas)
        for part, each in replicas:
            count, role = each.at("replicas").number(1), part.lower()
            is_master = role in masters
            named = _kubeflow_names(f"{name}-{role}", has_master=has_master, is_master=is_master)
            yield Pods(each.at("template"), count, named, count, part)

    return pods


def _kubeflow_names(name: str, *, has_master: bool, is_master: bool) -> _Names:
    def named(number: int) -> Named:
        labels = {contract.LABEL_REPLICA_INDEX: str(number)}
        if is_master or (not has_master and number == 0 and name.endswith("-worker")):
            labels[contract.LABEL_JOB_ROLE] = "master"
        return f"{name}-{number}", labels

    return named


def _mpi_job(workload: Field, name: str) -> Iterator[Pods]:
    spec = workload.at("spec")
    waits = spec.at("launcherCreationPolicy").value == "WaitForWorkersReady"
    first = int(spec.at("runLauncherAsWorker").is_true())
    for part, each in spec.at("mpiReplicaSpecs").fields():
        role = part.lower()
        count = each.at("replicas").number(1)
        is_late = waits and role == "launcher"
        named = _mpi_names(name, role, first)
        yield Pods(each.at("template"), count, named, 0 if is_late else count, part)


def _mpi_names(name: str, role: str, first: int) -> _Names:
    def named(number: int) -> Named:
        labels = {contract.LABEL_JOB_ROLE: role}
        if role != "launcher":
            return f"{name}-{role}-{number}", {
                **labels,
                contract.LABEL_REPLICA_INDEX: str(number + first),
            }
        return f"{name}-{role}", {
            **labels,
            **({contract.LABEL_REPLICA_INDEX: "0"} if first else {}),
        }

    return named


def _ray(*path: str) -> Callable[[Field, str], Iterator[Pods]]:
    """Return how to read a workload with the spec of a RayCluster at this path."""

    def pods(workload: Field, name: str) -> Iterator[Pods]:
        spec = workload.at(*path)
        if path[1:] and spec.value is None:
            text = "is missing: pods of a RayCluster that exists already are not read here"
            raise Misplaced(spec.place, text)
        yield Pods(spec.at("headGroupSpec", "template"), 1, _single(f"{name}-head"), 1, "head")
        for each in spec.at("workerGroupSpecs").items():
            part, least = each.at("groupName").text(), each.at("minReplicas").number(0)
            most = each.at("maxReplicas").number(MOST_PODS, most=2**31 - 1)
            replicas = min(max(each.at("replicas").number(least), least), most)
            count = 0 if each.at("suspend").is_true() else replicas
            count *= each.at("numOfHosts").number(1)
            named = _numbered(f"{name}-{part}-worker")
            yield Pods(each.at("template"), count, named, count, part)
        submitter = workload.at("spec", "submitterPodTemplate")
        if path[1:] and submitter.value is not None:
            yield Pods(submitter, 1, _single(f"{name}-submitter"), 0, "submitter")

    return pods


def _single(name: str) -> _Names:
    return lambda _: (name, {})


# Of these API groups, the pods of one workload usually need each other.
TOGETHER: Final = frozenset(
    {"jobset.x-k8s.io", "leaderworkerset.x-k8s.io", "kubeflow.org", train_jobs.GROUP}
)
_RUN_POLICY: Final = ("spec", "runPolicy", "suspend")
_SUSPEND: Final = ("spec", "suspend")
KINDS: Final[Mapping[str, Kind]] = {
    "Deployment": Kind("apps", _replicas),
    "ReplicaSet": Kind("apps", _replicas),
    "ReplicationController": Kind("", _replicas),
    "StatefulSet": Kind("apps", _stateful_set),
    "Job": Kind("batch", _job, _SUSPEND),
    "CronJob": Kind("batch", _cron_job, _SUSPEND),
    "PodTemplate": Kind("", _pod_template),
    "JobSet": Kind("jobset.x-k8s.io", _job_set, _SUSPEND),
    "LeaderWorkerSet": Kind("leaderworkerset.x-k8s.io", _leader_worker_set),
    "PyTorchJob": Kind("kubeflow.org", _kubeflow("pytorchReplicaSpecs", "master"), _RUN_POLICY),
    "TFJob": Kind("kubeflow.org", _kubeflow("tfReplicaSpecs", "chief", "master"), _RUN_POLICY),
    "XGBoostJob": Kind("kubeflow.org", _kubeflow("xgbReplicaSpecs", "master"), _RUN_POLICY),
    "PaddleJob": Kind("kubeflow.org", _kubeflow("paddleReplicaSpecs", "master"), _RUN_POLICY),
    "JAXJob": Kind("kubeflow.org", _kubeflow("jaxReplicaSpecs"), _RUN_POLICY),
    "MPIJob": Kind("kubeflow.org", _mpi_job, _RUN_POLICY),
    "TrainJob": Kind(train_jobs.GROUP, _job_set, _SUSPEND),
    "RayCluster": Kind("ray.io", _ray("spec"), _SUSPEND),
    "RayJob": Kind("ray.io", _ray("spec", "rayClusterSpec"), _SUSPEND),
    "RayService": Kind("ray.io", _ray("spec", "rayClusterConfig"), _SUSPEND),
}
