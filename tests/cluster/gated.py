"""A cluster with the scheduling gate, and its pods, for tests and trials."""

import base64
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from localcluster.cluster import Cluster
from localcluster.errors import ApiError
from localcluster.gpushare import ACCESS, NAMESPACE, ROOT, Gpushare
from localcluster.run import run
from localcluster.wait import wait_until
from localcluster.workloads import Workloads, pod
from tests.fakes.certificates import certificate
from tests.markdown import blocks

GATE: Final = "gpushare.aliyun.com/admission"
QUEUE: Final = "queue"  # a namespace with the label
COMPONENTS: Final = ROOT / "daemonset" / "components"
# Of Kubernetes before 1.36; there the API is off by default.
FLAGS: Final = (
    "--feature-gates=MutatingAdmissionPolicy=true",
    "--runtime-config=admissionregistration.k8s.io/v1beta1=true",
)
_WEBHOOK_PORT: Final = 29770


def guard(cluster: Cluster) -> None:
    """Apply accounts, rights and policies, and make the namespace QUEUE."""
    cluster.kubectl("apply", "-k", str(ACCESS))
    let_extender_release(cluster)
    described = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": QUEUE, "labels": {"gpushare.aliyun.com/queue": "true"}},
    }
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(described))


def let_extender_release(cluster: Cluster) -> None:
    """Apply what the component for gates permits the extender, and its policy."""
    for name in ("access", "policy"):
        cluster.kubectl("apply", "-f", str(COMPONENTS / "gates" / f"{name}.yaml"))


@contextmanager
def by_policy(cluster: Cluster) -> Iterator[None]:
    """Gate pods by the MutatingAdmissionPolicy while the context lasts."""
    text = (COMPONENTS / "gates" / "gating.yaml").read_text()
    text = text.replace("admissionregistration.k8s.io/v1\n", f"{served_version(cluster)}\n")
    cluster.kubectl("apply", "-f", "-", stdin=text)
    try:
        yield
    finally:
        cluster.kubectl("delete", "--ignore-not-found", "-f", "-", stdin=text)


def served_version(cluster: Cluster) -> str:
    """Return the newest version of the API for MutatingAdmissionPolicies."""
    group = "admissionregistration.k8s.io"
    found = cluster.kubectl("get", "--raw", f"/apis/{group}/v1")
    return f"{group}/v1" if "MutatingAdmissionPolicy" in found else f"{group}/v1beta1"


@contextmanager
def by_webhook(cluster: Cluster, folder: Path, **settings: Any) -> Iterator[None]:
    """Gate pods by an extender on the host while the context lasts."""
    own = certificate(folder, "webhook")
    listen = {"admission": admission_at("127.0.0.1", own)}
    Gpushare(cluster).start_extender(listen=listen, **settings)
    try:
        with webhook_at(cluster, "127.0.0.1", own):
            yield
    finally:
        cluster.stop("extender")


def admission_at(host: str, own: Path) -> dict[str, Any]:
    """Return the extender's setting for the webhook's address, with this certificate."""
    tls = {"certificate": str(own), "key": str(own.with_suffix(".key"))}
    return {"host": host, "port": _WEBHOOK_PORT, "tls": tls}


@contextmanager
def webhook_at(cluster: Cluster, host: str, own: Path) -> Iterator[None]:
    """Gate pods by an extender that listens at this address while the context lasts."""
    text = (COMPONENTS / "gates-webhook" / "webhook.yaml").read_text()
    service = text.partition("      service:\n")[2].partition("    rules:\n")[0]
    url = f"https://{host}:{_WEBHOOK_PORT}/gpushare-scheduler/gating"
    assert "path: /gpushare-scheduler/gating" in service
    text = text.replace(f"      service:\n{service}", f"      url: {url}\n")
    cluster.kubectl("apply", "-f", "-", stdin=text)
    try:
        _trust(cluster, own)
        yield
    finally:
        cluster.kubectl("delete", "--ignore-not-found", "-f", "-", stdin=text)


def _trust(cluster: Cluster, authority: Path) -> None:
    """Write the authority into the webhook, as docs/installation-options.md says."""
    data = {"ca.crt": base64.b64encode(authority.read_bytes()).decode()}
    metadata = {"name": "gpushare-extender-tls", "namespace": NAMESPACE}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(secret))
    found = blocks(ROOT / "docs/installation-options.md")
    (commands,) = [each.text for each in found if each.text.startswith("authority=")]
    env = {
        **os.environ,
        "PATH": f"{cluster.binaries}:{os.environ['PATH']}",
        "KUBECONFIG": str(cluster.kubeconfig),
    }
    run(["bash", "-ec", commands], env=env)


def gates_of(made: Mapping[str, Any]) -> list[str]:
    return [gate["name"] for gate in made["spec"].get("schedulingGates", ())]


def tried(cluster: Cluster, described: Mapping[str, Any], namespace: str = QUEUE) -> list[str]:
    """Return the gates that the API server would give a pod."""
    with cluster.api() as api:
        path = f"/api/v1/namespaces/{namespace}/pods?dryRun=All"
        return gates_of(api.request("POST", path, dict(described)))


def await_gating(cluster: Cluster, namespace: str = QUEUE, *, ends: bool = False) -> None:
    """Wait until pods are gated, or until they no longer are: the API server takes a while."""

    def other() -> str | None:
        try:
            found = tried(cluster, pod("probe", 1), namespace)
        except ApiError as err:
            return str(err)
        return None if (GATE in found) is not ends else str(found)

    wait_until("pods without the gate" if ends else "pods with the gate", other, seconds=60)


def gated(name: str, *others: str, **fields: Any) -> dict[str, Any]:
    """Describe a pod that brings the gate, as a template may."""
    gates = [{"name": gate} for gate in (GATE, *others)]
    return pod(name, 1, schedulingGates=gates, **fields)


def left(cluster: Cluster, namespace: str = QUEUE) -> int:
    """Return how many pods have the gate."""
    return sum(GATE in gates_of(each) for each in Workloads(cluster, namespace).all())


def command_line(cluster: Cluster, *words: str) -> Sequence[str]:
    return [sys.executable, "-m", "gpusharectl", *words, f"--kubeconfig={cluster.kubeconfig}"]
