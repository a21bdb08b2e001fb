"""Runs gpushare on a local cluster: from its image, or both programs from this checkout.

On a cluster with a control-plane node, ``daemonset/`` is applied and runs from the image. Otherwise
the programs run from the checkout: the extender on the host, as kube-scheduler does, and a device
plugin inside every node that has cards, each with the token of its ServiceAccount. Tests that stop,
replace and configure the programs use the second way.
"""

import http.client
import json
import os
import socket
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import yaml

from localcluster import cgroups, memory_limits, namespaces
from localcluster.cluster import Cluster
from localcluster.errors import ApiError, CommandError, UsageError
from localcluster.nvml import CardSpec
from localcluster.shipped import Shipped, components_for
from localcluster.specs import NodeSpec, Runtime
from localcluster.wait import patient, wait_until
from localcluster.workloads import pod

ROOT: Final = Path(__file__).parents[1]
ACCESS: Final = ROOT / "daemonset" / "base" / "access"
COMPONENTS: Final = ROOT / "daemonset" / "components"
SCHEDULER_CONFIG: Final = ROOT / "daemonset" / "scheduler" / "config.yaml"
NAMESPACE: Final = "gpushare-system"
EXTENDER: Final = ("127.0.0.1", 29766)
PLUGIN_PORT: Final = 29765
CARD_MIB: Final = 16276
LABELS: Final = {"gpushare": "true"}
CONTROL_PLANE: Final = "cp"

_POLICY_BINDINGS: Final = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
INVENTORY: Final = "gpushare.aliyun.com/inventory"
# The API server follows their changes in order: the others are in force, or gone, before the last
# one, which `_refusal` can see.
POLICIES: Final = (
    "gpushare-inventory",
    "gpushare-decisions",
    "gpushare-bindings",
    "gpushare-created-with-node",
)

_ASK_SECONDS: Final = 10.0
_ENVIRONMENT: Final = {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}

Binding = Literal["auto", "late", "early"]


def gpu_node(
    name: str, cards: int, *, cdi: bool = True, runtime: Runtime = "containerd-2"
) -> NodeSpec:
    """Describe a node of ``cards`` equal cards of CARD_MIB that gpushare shares by memory."""
    specs = tuple(CardSpec(f"GPU-{name}-{i}", mem_mib=CARD_MIB) for i in range(cards))
    return NodeSpec(name, LABELS, specs, cdi=cdi, runtime=runtime)


def control_plane_node() -> NodeSpec:
    """Describe the node where kube-scheduler and the extender from the image run."""
    return NodeSpec(CONTROL_PLANE, control_plane=True)


def check_port() -> None:
    """Raise UsageError if another process listens on the extender's port of the host.

    The cluster's kube-scheduler, on the host, sends its requests there.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(EXTENDER)
        except OSError as problem:
            host, port = EXTENDER
            raise UsageError(
                f"{host}:{port} is taken ({problem.strerror}): another local cluster with gpushare "
                "is up or was left over, and one at a time can be; `make down` removes it"
            ) from problem


@dataclass(frozen=True)
class Gpushare:
    """gpushare on ``cluster``, with units of one MiB."""

    cluster: Cluster

    def install(self, *, early: Collection[str] = ()) -> None:
        """Run both programs under their ServiceAccounts; return once pods can request every card.

        The plugin runs on the nodes with the DaemonSet's label. From the checkout, those in
        ``early`` must bind early; the others choose themselves.
        """
        if self.cluster.control_plane:
            shipped = Shipped(self.cluster)
            shipped.make_certificates()
            shipped.apply()
            self.wait_ready()
            return
        self.apply_access()
        self.start_extender()
        for node in self._nodes():
            self.start_plugin(node, binding="early" if node in early else "auto")
        self.wait_ready()

    def apply_access(self) -> None:
        """Apply the accounts and what they may do, and the policies if Kubernetes has them."""
        folder = self.cluster.state.path / "access"
        folder.mkdir(exist_ok=True)
        components = (COMPONENTS / each for each in components_for(self.cluster))
        document = {
            "resources": [os.path.relpath(ACCESS, folder)],
            "components": [os.path.relpath(each, folder) for each in components],
        }
        text = yaml.safe_dump(document)
        (folder / "kustomization.yaml").write_text(text, encoding="utf-8")
        self.cluster.kubectl("apply", "-k", str(folder))

    def start_extender(self, **settings: Any) -> None:
        """Start the extender under its ServiceAccount, on the host's loopback.

        ``settings`` are keys of its configuration file, as in docs/install.md.
        """
        self.configure_extender(**settings)
        words = [f"--config={self.extender_configuration}"]
        self.cluster.start_program("extender", _python("extender", words), env=_ENVIRONMENT)

    def restart_extender(self, **settings: Any) -> None:
        """Restart the extender with other settings; return once it answers."""
        self.cluster.stop("extender")
        self.start_extender(**settings)
        self.wait_ready()

    def configure_extender(self, **settings: Any) -> None:
        """Write the extender's configuration; it is read at the start and at SIGHUP."""
        if "kubeconfig" not in settings:
            account = self.cluster.service_account_kubeconfig(NAMESPACE, "gpushare-extender")
            settings["kubeconfig"] = str(account)
        whole = {"memoryUnit": "MiB", **settings}
        self.extender_configuration.write_text(yaml.safe_dump(whole), encoding="utf-8")

    @property
    def extender_configuration(self) -> Path:
        """Where the extender's configuration file is."""
        return self.cluster.state.path / "extender.yaml"

    def start_plugin(
        self,
        node: str,
        *arguments: str,
        binding: Binding = "auto",
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Start a node's device plugin under its ServiceAccount, with a token of that node."""
        cluster = self.cluster
        kubeconfig = self.plugin_kubeconfig(node)
        words = [
            f"--node-name={node}",
            f"--node-address={cluster.node_address(node)}",
            f"--kubeconfig={kubeconfig}",
            f"--kubelet-token={kubeconfig.with_suffix('.token')}",
            f"--state-dir={cluster.node_folder(node) / 'gpushare'}",
            f"--http-port={PLUGIN_PORT}",
            "--memory-unit=MiB",
            "--reserved=none",
            f"--binding={binding}",
            *arguments,
        ]
        whole = {**_ENVIRONMENT, **cluster.card_environment(node), **(env or {})}
        if (cluster.node_folder(node) / memory_limits.HOOK).exists():
            words.append(f"--cgroup-dir={cgroups.unified()}")
        command = _python("deviceplugin", words)
        cluster.start_program(plugin_of(node), command, node=node, env=whole)

    def restart_plugin(self, node: str, *arguments: str, binding: Binding) -> None:
        """Restart a node's plugin with another binding; return once it serves."""
        self.cluster.stop(plugin_of(node), grace=0)
        self.start_plugin(node, *arguments, binding=binding)
        self.wait_ready()

    def plugin_kubeconfig(self, node: str) -> Path:
        """Write the kubeconfig of a node's plugin."""
        return self.cluster.service_account_kubeconfig(
            NAMESPACE, "gpushare-deviceplugin", node=node
        )

    def wait_ready(self, *, seconds: float = 60) -> None:
        """Return once the extender answers and accepts new pods for the cards of every node."""

        def unready() -> str | None:
            try:
                known = {node["name"]: node for node in self.inspect()}
                for name, node in self._nodes().items():
                    self._plugin_page(name, "/readyz")
                    allocatable = node["status"]["allocatable"].get("aliyun.com/gpu-mem", "0")
                    if name not in known or allocatable == "0":
                        return f"node {name} shares {allocatable} units"
                    if '"leaving":true' in node["metadata"]["annotations"].get(INVENTORY, ""):
                        return f"node {name}: the plugin has not said yet that it takes pods again"
                    # kube-scheduler does not ask again when only the extender's watch was late.
                    if "device plugin has ended" in (why := self._why_refused(name)):
                        return f"node {name}: the extender says: {why}"
            except ApiError as err:
                return str(err)
            return None

        wait_until(
            "gpushare on every node",
            unready,
            seconds=seconds,
            log=None if self.cluster.control_plane else self.cluster.log_path("extender"),
        )

    @contextmanager
    def unguarded(self) -> Iterator[None]:
        """Remove, within the context, the policies that reject made-up decisions.

        For tests that fill a cluster with pods that already have a decision, and for tests of what
        holds without these policies.
        """
        if not self.cluster.version.has_policies:
            yield
            return
        with self.cluster.api() as api:
            taken = [api.get(f"{_POLICY_BINDINGS}/{name}") for name in POLICIES]
            for name in POLICIES:
                api.request("DELETE", f"{_POLICY_BINDINGS}/{name}")
        try:
            wait_until("the policies to be gone", lambda: self._refusal() or None, seconds=15)
            yield
        finally:
            with self.cluster.api() as api:
                for each in taken:
                    kept = {key: each["metadata"].get(key) for key in ("name", "annotations")}
                    api.request("POST", _POLICY_BINDINGS, {**each, "metadata": kept})
            wait_until(
                "the policies to hold",
                lambda: None if self._refusal() else "a made up decision is taken",
                seconds=15,
            )

    def _refusal(self) -> str:
        """Return why the API server rejects a pod that is created with node and decision."""
        metadata = {"name": "made-up", "annotations": {"ALIYUN_COM_GPU_MEM_IDX": "0"}}
        spec = {"nodeName": "nowhere", "containers": [{"name": "main", "image": "none"}]}
        made_up = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        try:
            with self.cluster.api() as api:
                api.request("POST", "/api/v1/namespaces/default/pods?dryRun=All", made_up)
        except ApiError as err:
            return str(err)
        return ""

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Send a request to the extender as kube-scheduler does; raise ApiError if unanswered."""
        sent = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        status, text = self._ask("the extender", EXTENDER, method, path, sent)
        try:
            return status, json.loads(text)
        except ValueError:
            return status, text

    def plugin_metrics(self, node: str) -> str:
        """Return the metrics of a node's plugin, in Prometheus' text form."""
        return self._plugin_page(node, "/metrics")

    def inspect(self, node: str = "") -> list[dict[str, Any]]:
        """Return every node's cards and shares, or one node's, as the extender counts them."""
        path = "/gpushare-scheduler/inspect" + (f"/{node}" if node else "")
        status, found = self.call("GET", path)
        if status != http.client.OK:
            raise ApiError(status, f"inspect: {found}")
        nodes: list[dict[str, Any]] = found["nodes"]
        return nodes

    def card_of(self, pod: str) -> tuple[str, int]:
        """Return node and card index on which the extender counts a pod with one card."""
        for node in self.inspect():
            for card in node["devs"]:
                if any(held["name"] == pod for held in card["pods"]):
                    return node["name"], card["id"]
        raise UsageError(f"pod {pod} uses no GPU")

    def _why_refused(self, node: str) -> str:
        """Return why the extender rejects a node for a pod of one unit; empty if it does not."""
        asked = {"Pod": pod("asks", 1), "NodeNames": [node]}
        status, found = self.call("POST", "/gpushare-scheduler/filter", asked)
        if status != http.client.OK:
            raise ApiError(status, f"filter: {found}")
        return str({**found["FailedNodes"], **found["FailedAndUnresolvableNodes"]}.get(node, ""))

    def _nodes(self) -> dict[str, dict[str, Any]]:
        """Return the real nodes that the DaemonSet selects, by name."""
        selector = "%2C".join(f"{key}%3D{value}" for key, value in LABELS.items())
        with self.cluster.api() as api:
            found = api.get(f"/api/v1/nodes?labelSelector={selector}")["items"]
        by_name = {each["metadata"]["name"]: each for each in found}
        return {name: by_name[name] for name in self.cluster.node_names if name in by_name}

    def _plugin_page(self, node: str, path: str) -> str:
        address = (self.cluster.node_address(node), PLUGIN_PORT)
        if self.cluster.control_plane:
            try:
                address = Shipped(self.cluster).plugin_address(node)
            except CommandError as problem:
                raise ApiError(0, f"the plugin of {node}: {problem}") from problem
        status, text = self._ask(f"the plugin of {node}", address, "GET", path)
        if status != http.client.OK:
            raise ApiError(status, f"the plugin of {node}: {text.strip()}")
        return text

    def _ask(
        self, who: str, address: tuple[str, int], method: str, path: str, body: bytes | None = None
    ) -> tuple[int, str]:
        """Return status and text of one request; raise ApiError if no answer comes.

        The request is sent from the place where kube-scheduler runs.
        """
        connection = http.client.HTTPConnection(*address, timeout=patient(_ASK_SECONDS))
        try:
            if node := self.cluster.control_plane:
                connection.sock = namespaces.connect(
                    self.cluster.state, node, address, seconds=patient(_ASK_SECONDS)
                )
            connection.request(method, path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except (OSError, http.client.HTTPException) as problem:
            raise ApiError(0, f"{who} does not answer: {problem}") from problem
        finally:
            connection.close()


def plugin_of(node: str) -> str:
    """Name the program that is a node's device plugin."""
    return f"deviceplugin-{node}"


def _python(module: str, words: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", module, *words]
