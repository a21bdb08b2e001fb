"""Command lines and configuration of etcd, the API server, controller manager and scheduler."""

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from localcluster.errors import HostError, UsageError
from localcluster.network import API_PORT, SERVICE_RANGE, NetworkPlan
from localcluster.pki import Authority, write_kubeconfig, write_signing_keys
from localcluster.state import StateFolder
from localcluster.versions import Features, Version

ETCD = "etcd"
API_SERVER = "kube-apiserver"
CONTROLLER_MANAGER = "kube-controller-manager"
SCHEDULER = "kube-scheduler"

_ETCD_PORT = 2379
_ETCD_PEER_PORT = 2380
_CONTROLLER_MANAGER_PORT = 10257
_SCHEDULER_PORT = 10259
HEALTH_PORTS = {
    CONTROLLER_MANAGER: _CONTROLLER_MANAGER_PORT,
    SCHEDULER: _SCHEDULER_PORT,
}
_NODE_TOKENS = (Version(29), Version(30))  # can bind tokens to Nodes, but do not by default
_ISSUER = "https://kubernetes.default.svc.cluster.local"


def write_certificates(state: StateFolder, plan: NetworkPlan, nodes: tuple[str, ...]) -> None:
    """Write the authority, every certificate, and every kubeconfig."""
    authority = Authority(state.pki)
    own = ("127.0.0.1", plan.host)
    authority.sign("etcd", user="etcd", addresses=own, hosts=("localhost",))
    service = "kubernetes.default.svc"
    authority.sign(
        API_SERVER,
        user=API_SERVER,
        addresses=(*own, "10.96.0.1"),
        hosts=("kubernetes", "kubernetes.default", service, f"{service}.cluster.local"),
    )
    write_signing_keys(state.pki)
    users: dict[str, tuple[str, tuple[str, ...]]] = {
        "admin": ("localcluster-admin", ("system:masters",)),
        CONTROLLER_MANAGER: ("system:kube-controller-manager", ()),
        SCHEDULER: ("system:kube-scheduler", ()),
        **{f"kubelet-{node}": (f"system:node:{node}", ("system:nodes",)) for node in nodes},
    }
    for name, (user, groups) in users.items():
        certificate, key = authority.sign(name, user=user, groups=groups)
        write_kubeconfig(
            state.kubeconfigs / f"{name}.kubeconfig",
            server=plan.server,
            authority=authority.certificate,
            user={"client-certificate": str(certificate), "client-key": str(key)},
        )


def check_ports(plan: NetworkPlan) -> None:
    """Raise HostError if a port of the control plane is in use on the bridge's address."""
    taken = []
    ports = (_ETCD_PORT, _ETCD_PEER_PORT, API_PORT, _CONTROLLER_MANAGER_PORT, _SCHEDULER_PORT)
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((plan.host, port))
            except OSError:
                taken.append(port)
    if taken:
        text = (
            f"ports taken on every address of this machine: {taken}; wanted on {plan.host} for the"
            " control plane; stop what listens there (ss -ltnp)"
        )
        raise HostError(text)


def etcd_arguments(state: StateFolder, plan: NetworkPlan) -> list[str]:
    """Return etcd's arguments."""
    client = f"https://{plan.host}:{_ETCD_PORT}"
    peer = f"http://{plan.host}:{_ETCD_PEER_PORT}"
    return [
        f"--data-dir={state.path / 'etcd'}",
        # The data lives no longer than the cluster: a power failure ends both. A killed etcd
        # loses nothing, what it wrote is in the page cache.
        "--unsafe-no-fsync",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--client-cert-auth",
        f"--trusted-ca-file={state.pki / 'ca.crt'}",
        f"--cert-file={state.pki / 'etcd.crt'}",
        f"--key-file={state.pki / 'etcd.key'}",
        "--log-level=warn",
    ]


def api_server_arguments(
    state: StateFolder,
    plan: NetworkPlan,
    version: Version,
    features: Features,
    flags: Sequence[str] = (),
) -> list[str]:
    """Return the API server's arguments, with kubeadm's authorization and admission, and flags."""
    pki = state.pki
    if version in _NODE_TOKENS:
        gates = {"ServiceAccountTokenNodeBinding": True, **features.gates}
        features = Features(gates, features.apis)
    return [
        f"--advertise-address={plan.host}",
        f"--bind-address={plan.host}",
        f"--secure-port={API_PORT}",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        f"--client-ca-file={pki / 'ca.crt'}",
        f"--tls-cert-file={pki / 'kube-apiserver.crt'}",
        f"--tls-private-key-file={pki / 'kube-apiserver.key'}",
        f"--etcd-servers=https://{plan.host}:{_ETCD_PORT}",
        f"--etcd-cafile={pki / 'ca.crt'}",
        f"--etcd-certfile={pki / 'kube-apiserver.crt'}",
        f"--etcd-keyfile={pki / 'kube-apiserver.key'}",
        f"--kubelet-client-certificate={pki / 'admin.crt'}",
        f"--kubelet-client-key={pki / 'admin.key'}",
        "--kubelet-preferred-address-types=InternalIP",
        f"--requestheader-client-ca-file={pki / 'ca.crt'}",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--service-account-issuer={_ISSUER}",
        f"--service-account-key-file={pki / 'service-accounts.pub'}",
        f"--service-account-signing-key-file={pki / 'service-accounts.key'}",
        # No kube-proxy: webhooks are called at the addresses of their pods.
        "--enable-aggregator-routing=true",
        *features.gate_flags,
        *features.api_flags,
        *flags,
    ]


def controller_manager_arguments(
    state: StateFolder, plan: NetworkPlan, features: Features
) -> list[str]:
    """Return the controller manager's arguments; it runs all its default controllers."""
    kubeconfig = state.kubeconfigs / f"{CONTROLLER_MANAGER}.kubeconfig"
    return [
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        f"--bind-address={plan.host}",
        f"--secure-port={_CONTROLLER_MANAGER_PORT}",
        "--leader-elect=false",
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={state.pki / 'service-accounts.key'}",
        f"--root-ca-file={state.pki / 'ca.crt'}",
        # It makes this folder; by default that is one of the host's.
        f"--flex-volume-plugin-dir={state.path / 'volume-plugins'}",
        *features.gate_flags,
    ]


def scheduler_arguments(state: StateFolder, plan: NetworkPlan, features: Features) -> list[str]:
    """Return the scheduler's arguments."""
    kubeconfig = state.kubeconfigs / f"{SCHEDULER}.kubeconfig"
    return [
        f"--config={state.config / 'kube-scheduler.yaml'}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        f"--bind-address={plan.host}",
        f"--secure-port={_SCHEDULER_PORT}",
        *features.gate_flags,
    ]


def write_scheduler_configuration(state: StateFolder, given: Path | None) -> None:
    """Write the caller's configuration with our kubeconfig and without leader election.

    Raises UsageError if `given` cannot be read as a KubeSchedulerConfiguration.
    """
    document: dict[str, Any] = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
    }
    if given is not None:
        document = _read_scheduler_configuration(given)
    connection = document.get("clientConnection") or {}
    kubeconfig = str(state.kubeconfigs / f"{SCHEDULER}.kubeconfig")
    document["clientConnection"] = {**connection, "kubeconfig": kubeconfig}
    election = document.get("leaderElection") or {}
    document["leaderElection"] = {**election, "leaderElect": False}
    text = yaml.safe_dump(document, sort_keys=False)
    (state.config / "kube-scheduler.yaml").write_text(text, encoding="utf-8")


def _read_scheduler_configuration(given: Path) -> dict[str, Any]:
    try:
        document = yaml.safe_load(given.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as problem:
        text = f"the scheduler configuration {given} cannot be read: {problem}"
        raise UsageError(text) from problem
    if not isinstance(document, dict) or document.get("kind") != "KubeSchedulerConfiguration":
        text = f"{given} is no KubeSchedulerConfiguration; give a file of that kind"
        raise UsageError(text)
    return document
