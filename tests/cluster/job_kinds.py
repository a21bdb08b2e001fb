"""Controllers of jobs on a local cluster, and the samples of gangs as these can run there."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import yaml

from localcluster.cluster import Cluster
from localcluster.gpushare import ROOT
from localcluster.images import WORKLOAD
from localcluster.kueue.controllers import sources
from localcluster.pki import Authority
from localcluster.wait import wait_until
from localcluster.workloads import Workloads
from tests.cluster.expect import RESOURCE, wait_established

UNITS: Final = 1000  # of the cluster for one of the samples, so that a GPU holds two members
# Definitions by module: those of controllers that do not run here too.
_DEFINITIONS: Final = {
    "github.com/kubeflow/mpi-operator": "manifests/base/kubeflow.org_mpijobs.yaml",
    "github.com/kubeflow/trainer/v2": "manifests/base/crds",
    "github.com/kubeflow/training-operator": "manifests/base/crds/kubeflow.org_pytorchjobs.yaml",
    "github.com/ray-project/kuberay/ray-operator": "config/crd/bases/ray.io_rayclusters.yaml",
}
_KINDS: Final = (
    "mpijobs.kubeflow.org",
    "trainingruntimes.trainer.kubeflow.org",
    "trainjobs.trainer.kubeflow.org",
    "pytorchjobs.kubeflow.org",
    "rayclusters.ray.io",
)
_ADDRESS: Final = "127.0.0.1"
# Where Trainer looks for the certificate of its webhooks, which are not installed.
_CERTIFICATES: Final = "k8s-webhook-server/serving-certs"


def sample(name: str) -> Path:
    """Return a sample's file."""
    return ROOT / "daemonset" / "samples" / f"gang-{name}.yaml"


def define(cluster: Cluster) -> None:
    """Let the API server serve the kinds whose controllers have no manifests here."""
    for module, place in _DEFINITIONS.items():
        path = sources(module) / place
        how = "-k" if path.is_dir() else "-f"
        # Some are too large for the annotation of a client-side apply.
        cluster.kubectl("apply", "--server-side", how, str(path))
    wait_established(cluster, *_KINDS)


def start_mpi_operator(cluster: Cluster, programs: Path) -> None:
    """Run the MPI Operator as administrator."""
    env = {"KUBECONFIG": str(cluster.kubeconfig)}
    command = [str(programs / "mpi-operator"), "--lock-namespace=default"]
    cluster.start_program("mpi-operator", command, env=env)


def start_trainer(cluster: Cluster, programs: Path, folder: Path) -> None:
    """Run Trainer as administrator, without webhooks; ``folder`` is its /tmp."""
    certificates = folder / _CERTIFICATES
    certificates.mkdir(parents=True)
    Authority(certificates).sign("tls", user="trainer", addresses=(_ADDRESS,))
    configured = {
        "apiVersion": "config.trainer.kubeflow.org/v1alpha1",
        "kind": "Configuration",
        "certManagement": {"enable": False},
        "health": {"healthProbeBindAddress": f"{_ADDRESS}:8084"},
        "leaderElection": {"leaderElect": False},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": _ADDRESS, "port": 9446},
    }
    path = folder / "trainer.yaml"
    path.write_text(yaml.safe_dump(configured), encoding="utf-8")
    command = [str(programs / "trainer-controller-manager"), f"--config=/tmp/{path.name}"]
    alone = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /tmp && exec "$@"', str(folder)]
    env = {"KUBECONFIG": str(cluster.kubeconfig)}
    cluster.start_program("trainer", [*alone, *command], env=env)


def for_cluster(name: str) -> list[dict[str, Any]]:
    """Return a sample's objects with an image and GPUs of this cluster."""
    found = list(yaml.safe_load_all(sample(name).read_text()))
    for each in found:
        for spec in _pod_specs(each):
            spec["terminationGracePeriodSeconds"] = 1
            spec.pop("runtimeClassName", None)
            for container in spec["containers"]:
                container |= {"image": WORKLOAD, "imagePullPolicy": "Never"}
                container["command"] = ["/workload"]  # an operator may have another default
        _scale(each)
    return found


@contextmanager
def created(cluster: Cluster, made: Sequence[Mapping[str, Any]]) -> Iterator[Workloads]:
    """Create objects; at the end delete them, and wait until their pods are gone."""
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": made})
    pods = Workloads(cluster)
    cluster.kubectl("create", "-f", "-", stdin=listed)
    try:
        yield pods
    finally:
        cluster.kubectl("delete", "--wait=false", "-f", "-", stdin=listed)

        def left() -> str | None:
            return ", ".join(each["metadata"]["name"] for each in pods.all()) or None

        wait_until("pods to be gone", left, seconds=60)


def _scale(found: Any) -> None:
    """Multiply each limit of GPU memory, and leave out commands outside of pod templates."""
    if isinstance(found, dict):
        limits = found.get("limits")
        if isinstance(limits, dict) and RESOURCE in limits:
            limits[RESOURCE] *= UNITS
        trainer = found.get("trainer")
        if isinstance(trainer, dict):
            trainer["command"] = ["/workload"]
    for each in _inner(found):
        _scale(each)


def _pod_specs(found: Any) -> Iterator[dict[str, Any]]:
    if isinstance(found, dict) and isinstance(found.get("containers"), list):
        yield found
    for each in _inner(found):
        yield from _pod_specs(each)


def _inner(found: Any) -> Iterator[Any]:
    if isinstance(found, Mapping):
        yield from found.values()
    elif isinstance(found, list):
        yield from found
