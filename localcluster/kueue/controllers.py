"""Kueue and controllers of jobs, built from one Go module and run on the host.

Those of `Controller` are as their manifests have them: rights, webhooks behind a Service, and
certificates that the controllers make themselves. Trainer and the MPI Operator are programs only.
"""

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from localcluster.cluster import Cluster
from localcluster.errors import CommandError
from localcluster.gobuild import module_folder
from localcluster.programs import Programs, Progress, provide_programs
from localcluster.wait import wait_until

_MODULE: Final = Path(__file__).parent
_PACKAGES: Final = (
    "github.com/kubeflow/mpi-operator/cmd/mpi-operator",
    "github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager",
    "sigs.k8s.io/jobset",
    "sigs.k8s.io/kueue/cmd/kueue",
    "sigs.k8s.io/lws/cmd",
)
# What only a pod of the controller can be: its Deployment, and servers that this one leaves off.
_LEFT_OUT: Final = frozenset({"Deployment", "APIService"})
# Where the Deployment mounts the Secret with the certificate. JobSet looks nowhere else.
_CERTIFICATES: Final = "k8s-webhook-server/serving-certs"
_SECONDS: Final = 60


@dataclass(frozen=True)
class Controller:
    """A controller, with the names that its manifests derive from its own.

    `configured` is the apiVersion of its configuration, `probe` an object that its webhooks accept.
    `settings` turn off what needs a folder of this machine. `program` is the name of its program if
    that is another.
    """

    name: str
    configured: str
    port: int
    health_port: int
    probe: Mapping[str, Any]
    settings: Mapping[str, Any]
    program: str = ""

    @property
    def namespace(self) -> str:
        """Its namespace."""
        return f"{self.name}-system"

    def install(self, cluster: Cluster, progress: Progress, **settings: Any) -> None:
        """Apply its manifests and run it; return once its webhooks answer.

        `settings` are keys of its configuration file. Raises BuildError, CommandError,
        DeadlineError.
        """
        program = programs(progress) / (self.program or self.name)
        text = yaml.dump_all(self._manifests(cluster), Dumper=yaml.CSafeDumper)
        # The definition of a Workload is too large for the annotation of a client-side apply. A
        # validation asks for the whole OpenAPI first, with 32 s that no flag of kubectl stretches.
        cluster.kubectl("apply", "--server-side", "--validate=false", "-f", "-", stdin=text)
        self._configure(cluster, settings)
        (self._folder(cluster) / _CERTIFICATES).mkdir(parents=True, exist_ok=True)
        account = cluster.service_account_kubeconfig(
            self.namespace, f"{self.name}-controller-manager"
        )
        command = [str(program), f"--config={self._configuration(cluster)}"]
        # Another /tmp, so that every cluster's controllers have certificates of their own.
        alone = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /tmp && exec "$@"']
        cluster.start_program(
            self.name,
            [*alone, str(self._folder(cluster)), *command, f"--kubeconfig={account}"],
        )
        self._mount(cluster)
        self._await_webhooks(cluster)

    def restart(self, cluster: Cluster, **settings: Any) -> None:
        """Restart it with other settings; return once its webhooks answer."""
        cluster.stop(self.name)
        self._configure(cluster, settings)
        cluster.start(self.name)
        self._await_webhooks(cluster)

    def _manifests(self, cluster: Cluster) -> list[dict[str, Any]]:
        """Return what its own kustomization renders, with its process as the Services' endpoint."""
        folder = sources(f"sigs.k8s.io/{self.name}") / "config" / "default"
        text = cluster.kubectl("kustomize", str(folder))
        found = [
            each
            for each in yaml.load_all(text, Loader=yaml.CSafeLoader)
            if each["kind"] not in _LEFT_OUT
        ]
        for each in found:
            if each["kind"] == "Service":
                del each["spec"]["selector"]
        return [*found, self._endpoint(cluster)]

    def _endpoint(self, cluster: Cluster) -> dict[str, Any]:
        service = f"{self.name}-webhook-service"
        labels = {"kubernetes.io/service-name": service}
        return {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": service, "namespace": self.namespace, "labels": labels},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [cluster.network.host]}],
            "ports": [{"name": "", "port": self.port}],
        }

    def _configure(self, cluster: Cluster, settings: Mapping[str, Any]) -> None:
        host = cluster.network.host
        whole = {
            "apiVersion": self.configured,
            "kind": "Configuration",
            "health": {"healthProbeBindAddress": f"{host}:{self.health_port}"},
            "metrics": {"bindAddress": "0"},
            "webhook": {"host": host, "port": self.port},
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": True},
            **self.settings,
            **settings,
        }
        self._configuration(cluster).write_text(yaml.safe_dump(whole), encoding="utf-8")

    def _configuration(self, cluster: Cluster) -> Path:
        return cluster.state.config / f"{self.name}.yaml"

    def _folder(self, cluster: Cluster) -> Path:
        return cluster.state.path / self.name

    def _mount(self, cluster: Cluster) -> None:
        """Write the certificate of its Secret where the kubelet would."""
        found: dict[str, str] = {}

        def missing() -> str | None:
            with cluster.api() as api:
                secret = f"secrets/{self.name}-webhook-server-cert"
                path = f"/api/v1/namespaces/{self.namespace}/{secret}"
                found.update(api.get(path).get("data") or {})
            return None if found else "the Secret is empty"

        self._wait(cluster, "certificate", missing)
        for name, encoded in found.items():
            path = self._folder(cluster) / _CERTIFICATES / name
            path.write_bytes(base64.b64decode(encoded))

    def _await_webhooks(self, cluster: Cluster) -> None:
        def refused() -> str | None:
            try:
                words = ("create", "--dry-run=server", "-f", "-")
                cluster.kubectl(*words, stdin=json.dumps(self.probe))
            except CommandError as problem:
                return str(problem)
            return None

        self._wait(cluster, "webhooks", refused)

    def _wait(self, cluster: Cluster, what: str, seen: Callable[[], str | None]) -> None:
        log = cluster.log_path(self.name)
        wait_until(f"{self.name}: {what}", seen, seconds=_SECONDS, log=log, interval=0.2)


KUEUE: Final = Controller(
    "kueue",
    "config.kueue.x-k8s.io/v1beta2",
    9443,
    8081,
    {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "ResourceFlavor",
        "metadata": {"name": "probe"},
    },
    # It would write a certificate into /visibility.
    {"featureGates": {"VisibilityOnDemand": False}},
)
JOBSET: Final = Controller(
    "jobset",
    "config.jobset.x-k8s.io/v1alpha1",
    9444,
    8082,
    {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "probe"},
        "spec": {"replicatedJobs": []},
    },
    {},
)
LWS: Final = Controller(
    "lws",
    "config.lws.x-k8s.io/v1alpha1",
    9445,
    8083,
    {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": "probe"},
        "spec": {"leaderWorkerTemplate": {"workerTemplate": {"spec": {"containers": []}}}},
    },
    {},
    program="cmd",
)


def sources(module: str) -> Path:
    """Return the folder of a module that Kueue or a program here is built from. BuildError."""
    return module_folder(_MODULE, module)


def programs(progress: Progress) -> Path:
    """Return the folder of all programs; build them if they are not in the cache.

    Raises BuildError.
    """
    return provide_programs(Programs("kueue", _MODULE, _PACKAGES), progress)
