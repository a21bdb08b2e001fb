"""Kueue in front of gpushare: a cluster with both, and the manifests of docs/kueue.md on it."""

import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import yaml

from gpushare.objects.quantity import parse_units
from localcluster.build import Progress
from localcluster.cluster import Cluster
from localcluster.gpushare import CARD_MIB, ROOT, Gpushare, gpu_node
from localcluster.images import WORKLOAD
from localcluster.kueue.controllers import JOBSET, KUEUE
from localcluster.wait import wait_until
from localcluster.workloads import Workloads, is_running, pod
from tests.cluster.bringup import fresh, own_network
from tests.cluster.expect import RESOURCE
from tests.cluster.gated import FLAGS, await_gating, by_policy, let_extender_release
from tests.cluster.history import History
from tests.markdown import blocks

UNIT: Final = 400  # of the cluster for one of the document, so that a GPU has 40
MEMBERS: Final = 2  # of each gang of the document
GANG_UNITS: Final = 20  # of both
# Kueue gives both to the pods of a group, and removes them together.
KUEUES_GATES: Final = {"kueue.x-k8s.io/admission", "kueue.x-k8s.io/topology"}
_GANGS: Final = {"Job": "train", "Pod": "tune", "JobSet": "pretrain"}  # names in the document
_DOCUMENT: Final = ROOT / "docs/kueue.md"
_NAMESPACE: Final = "team-a"
_GROUP: Final = "kueue.x-k8s.io/v1beta2"


@dataclass(frozen=True)
class Case:
    """A gang of this kind, in a namespace with a ClusterQueue of its own.

    ``is_gated``: the namespace has gpushare's label, so its pods begin with gpushare's gate.
    """

    kind: str
    is_gated: bool

    @property
    def name(self) -> str:
        """Return the name of its namespace and of its ClusterQueue."""
        return f"{self.kind.lower()}-{'gated' if self.is_gated else 'ungated'}"

    @property
    def gang(self) -> str:
        """Return how the names of its pods begin."""
        return _GANGS[self.kind]

    @property
    def workload(self) -> str:
        """Return how the name of its Workload begins."""
        return self.gang if self.kind == "Pod" else f"{self.kind.lower()}-{self.gang}"


CASES: Final = [Case(kind, gated) for kind in _GANGS for gated in (False, True)]


@contextmanager
def kueue_in_front(name: str, progress: Progress, **settings: Any) -> Iterator[Gpushare]:
    """Bring up gpushare with its gates, JobSet, and Kueue as the document configures it.

    There are four GPUs of 40 units. ``settings`` replace keys of Kueue's configuration.
    """
    nodes = [gpu_node(each, 2) for each in ("n1", "n2")]
    with (
        own_network(),
        fresh(nodes, name=name, api_server_flags=FLAGS, progress=progress) as cluster,
    ):
        gpushare = Gpushare(cluster)
        gpushare.install()
        let_extender_release(cluster)
        JOBSET.install(cluster, progress)
        KUEUE.install(cluster, progress, **{**configuration(), **settings})
        with by_policy(cluster):
            apply(cluster, [_namespace(case) for case in CASES])
            await_gating(cluster, next(case.name for case in CASES if case.is_gated))
            yield gpushare


def configuration() -> dict[str, Any]:
    """Return the keys of Kueue's configuration in the document."""
    (found,) = _documented("Configuration")
    return {key: value for key, value in found.items() if key not in {"apiVersion", "kind"}}


def queues(quota: int) -> list[dict[str, Any]]:
    """Return the document's flavor, and for each case its queues with this quota, in its units."""
    made = _documented("ResourceFlavor")
    for case in CASES:
        (queue,), (local,) = _documented("ClusterQueue"), _documented("LocalQueue")
        queue["metadata"]["name"] = local["spec"]["clusterQueue"] = case.name
        local["metadata"]["namespace"] = case.name
        (flavor,) = queue["spec"]["resourceGroups"][0]["flavors"]
        (resource,) = flavor["resources"]
        resource["nominalQuota"] = quota * UNIT
        made += [queue, local]
    return made


def hold(cluster: Cluster, policy: str) -> None:
    """Let Kueue admit nothing (``Hold``), or admit again (``None``)."""
    with cluster.api() as api:
        for case in CASES:
            api.request(
                "PATCH",
                f"/apis/{_GROUP}/clusterqueues/{case.name}",
                {"spec": {"stopPolicy": policy}},
                content_type="application/merge-patch+json",
            )


def gang(case: Case) -> list[dict[str, Any]]:
    """Return the document's gang of two, for this cluster."""
    return [_here(each, case) for each in _documented(case.kind)]


def single(case: Case, name: str, units: int) -> list[dict[str, Any]]:
    """Return a Job of one pod that requests so many of the document's units."""
    (job,) = _documented("Job")
    job["metadata"]["name"] = name
    job["spec"] |= {"parallelism": 1, "completions": 1}
    del job["spec"]["template"]["metadata"]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    container["resources"]["limits"][RESOURCE] = units
    return [_here(job, case)]


def apply(cluster: Cluster, made: Sequence[Mapping[str, Any]]) -> None:
    """Apply objects."""
    listed = {"apiVersion": "v1", "kind": "List", "items": made}
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(listed))


def clear(cluster: Cluster) -> None:
    """Delete all that runs or waits, and return once Kueue and the kubelets know."""
    for case in CASES:
        words = ("jobsets,jobs,pods,workloads", "--all", "--wait=false", "-n", case.name)
        cluster.kubectl("delete", *words)

    def left() -> str | None:
        found = [case.name for case in CASES if pods_of(cluster, case) or used(cluster, case)]
        return ", ".join(found) or None

    wait_until("everything to be deleted", left, seconds=60)


def condition(cluster: Cluster, case: Case, workload: str, kind: str) -> dict[str, Any]:
    """Return a condition of the Workload whose name begins so; empty without it."""
    with cluster.api() as api:
        items = api.get(f"/apis/{_GROUP}/namespaces/{case.name}/workloads")["items"]
    found = [
        each
        for item in items
        if item["metadata"]["name"].startswith(workload)
        for each in item.get("status", {}).get("conditions", ())
        if each["type"] == kind
    ]
    return found[0] if found else {}


def used(cluster: Cluster, case: Case) -> int:
    """Return how many of the document's units of a case's quota are taken."""
    with cluster.api() as api:
        status = api.get(f"/apis/{_GROUP}/clusterqueues/{case.name}").get("status", {})
    amounts = [
        parse_units(resource["total"])
        for flavor in status.get("flavorsReservation", ())
        for resource in flavor["resources"]
    ]
    return sum(amounts) // UNIT


def pods_of(cluster: Cluster, case: Case) -> list[dict[str, Any]]:
    """Return a case's pods."""
    return Workloads(cluster, case.name).all()


def bound(cluster: Cluster, case: Case) -> list[str]:
    """Return the names of a case's pods that have a node."""
    return [
        each["metadata"]["name"] for each in pods_of(cluster, case) if each["spec"].get("nodeName")
    ]


def not_running(cluster: Cluster, case: Case, name: str, count: int) -> str | None:
    """Return how many pods with such a name run, if they are not so many."""
    found = [each for each in pods_of(cluster, case) if each["metadata"]["name"].startswith(name)]
    running = sum(is_running(each) for each in found)
    return None if running == count else f"{running} of {len(found)} pods run"


def leave_room_for_one_member(cluster: Cluster) -> list[str]:
    """Fill the GPUs but for one member of all gangs, or six pods of 5 units; return the names."""
    left = (9, 9, 9, 19)
    made = [
        pod(f"filler-{number}", CARD_MIB - units * UNIT, terminationGracePeriodSeconds=1)
        for number, units in enumerate(left)
    ]
    Workloads(cluster).run(*made)
    return [each["metadata"]["name"] for each in made]


def delete_groups(cluster: Cluster) -> None:
    """Delete groups of pods as the document says; return once their pods are gone."""
    (commands,) = (each.text for each in blocks(_DOCUMENT) if each.language == "sh")
    groups = [case for case in CASES if case.kind == "Pod"]
    for case in groups:
        kubectl, *words = commands.replace(_NAMESPACE, case.name).split()
        assert kubectl == "kubectl", commands
        cluster.kubectl(*words)

    def left() -> str | None:
        found = {each["metadata"]["name"] for case in groups for each in pods_of(cluster, case)}
        return ", ".join(name for name in found if name.startswith(groups[0].gang)) or None

    wait_until("pods of groups to be gone", left, seconds=60)


def wait_each(cluster: Cluster, what: str, other: Callable[[Case], object], seconds: int) -> None:
    """Return once ``other`` finds nothing in any case."""

    def seen() -> str | None:
        found = {case.name: text for case in CASES if (text := other(case))}
        return str(found) if found else None

    wait_until(what, seen, seconds=seconds, log=cluster.log_path("kueue"))


def whole_or_nothing(history: History) -> None:
    """Check that of no gang some members were ever bound, and the others never."""
    ever: dict[str, set[str]] = {}
    for change in history.changes:
        if change.name.startswith(tuple(_GANGS.values())) and change.node:
            ever.setdefault(change.pod["metadata"]["namespace"], set()).add(change.uid)
    assert all(len(uids) == MEMBERS for uids in ever.values()), ever


def _documented(kind: str) -> list[dict[str, Any]]:
    found = (
        each
        for block in blocks(_DOCUMENT)
        if block.language == "yaml"
        for each in yaml.safe_load_all(block.text)
    )
    return [each for each in found if each["kind"] == kind]


def _namespace(case: Case) -> dict[str, Any]:
    labels = {"gpushare.aliyun.com/queue": "true"} if case.is_gated else {}
    metadata = {"name": case.name, "labels": labels}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}


def _here(made: Mapping[str, Any], case: Case) -> dict[str, Any]:
    """Return a documented object in a case's namespace, with an image of this cluster."""
    found = copy.deepcopy(dict(made))
    found["metadata"]["namespace"] = case.name
    for spec in _pod_specs(found):
        spec["terminationGracePeriodSeconds"] = 1
        for container in spec["containers"]:
            container |= {"image": WORKLOAD, "imagePullPolicy": "Never"}
            container["resources"]["limits"][RESOURCE] *= UNIT
    return found


def _pod_specs(found: Any) -> Iterator[dict[str, Any]]:
    if isinstance(found, dict):
        if "containers" in found:
            yield found
        for value in found.values():
            yield from _pod_specs(value)
    elif isinstance(found, list):
        for value in found:
            yield from _pod_specs(value)
