"""Starts a cluster: in which order, and what to wait for before the next step."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localcluster import controlplane, namespaces, network, staticpod
from localcluster.api import Api
from localcluster.build import Progress
from localcluster.control import Control, base_environment, start_supervisor
from localcluster.errors import ApiError
from localcluster.health import await_healthy
from localcluster.images import (
    CUDA_ENVIRONMENT,
    CUDA_WORKLOAD,
    GREEDY_ENVIRONMENT,
    GREEDY_WORKLOAD,
    PAUSE,
    SCHEDULER,
    WORKLOAD,
    Image,
    archive,
)
from localcluster.network import NetworkPlan
from localcluster.node import Node
from localcluster.paper import add_paper_nodes, keeper
from localcluster.seed import seed
from localcluster.specs import NodeSpec, PaperNode, Runtime
from localcluster.state import StateFolder, locked, state_root
from localcluster.supervised import ProcessSpec
from localcluster.versions import Features, Version
from localcluster.wait import wait_until

CONTROL_PLANE = "node-role.kubernetes.io/control-plane"
_API_SECONDS = 60.0
_READY_SECONDS = 90.0


@dataclass(frozen=True)
class Plan:
    """Everything to start; `runtimes` has the programs of each node's runtime."""

    state: StateFolder
    version: Version
    features: Features
    binaries: Path
    runtimes: Mapping[Runtime, Path]
    nodes: tuple[NodeSpec, ...]
    paper_nodes: tuple[PaperNode, ...]
    scheduler_config: Path | None
    archives: tuple[Path, ...] = ()
    api_server_flags: tuple[str, ...] = ()

    @property
    def control_plane(self) -> NodeSpec | None:
        """The node where kube-scheduler runs; without one it runs on the host."""
        return next((each for each in self.nodes if each.control_plane), None)


def bring_up(plan: Plan, progress: Progress) -> None:
    """Start everything and return once nodes are Ready and pods can be created.

    Raises a LocalClusterError; the caller then tears down what was started.
    """
    begun = time.monotonic()

    def say(text: str) -> None:
        progress(f"{time.monotonic() - begun:5.1f} s  {text}")

    state = plan.state
    state.create()
    with locked(state_root() / ".network.lock"):
        addresses = network.choose(network.routes_on_host())
        network.create_bridge(state, addresses)
    _record(plan, addresses)
    controlplane.check_ports(addresses)
    controlplane.write_certificates(state, addresses, tuple(each.name for each in plan.nodes))
    controlplane.write_scheduler_configuration(state, plan.scheduler_config)
    control = start_supervisor(state)
    start = _component_starter(plan, control)
    start(controlplane.ETCD, controlplane.etcd_arguments(state, addresses))
    arguments = controlplane.api_server_arguments(
        state, addresses, plan.version, plan.features, plan.api_server_flags
    )
    start(controlplane.API_SERVER, arguments)
    say(f"etcd and kube-apiserver started, nodes and host on {addresses.block}")
    namespaces.prepare(state)
    archives = [_write_images(plan), *plan.archives]
    cri_o = any(each.runtime == "cri-o" for each in plan.nodes)
    images = seed(state, plan.binaries, archives, cri_o=cri_o)
    nodes = [
        Node(
            state,
            addresses,
            spec,
            index,
            plan.binaries,
            plan.runtimes[spec.runtime],
            plan.version,
            plan.features,
        )
        for index, spec in enumerate(plan.nodes, start=1)
    ]
    with ThreadPoolExecutor(max_workers=8) as pool:
        prepared = [pool.submit(_prepare, node, control, images) for node in nodes]
        with Api(state, addresses.host) as api:
            _await_api_server(state, api)
            say("kube-apiserver answers")
            arguments = controlplane.controller_manager_arguments(state, addresses, plan.features)
            start(controlplane.CONTROLLER_MANAGER, arguments)
            on_host = dict(controlplane.HEALTH_PORTS)
            if plan.control_plane:
                del on_host[controlplane.SCHEDULER]
            else:
                arguments = controlplane.scheduler_arguments(state, addresses, plan.features)
                start(controlplane.SCHEDULER, arguments)
            _start_kubelets(nodes, prepared, control)
            for name, port in on_host.items():
                await_healthy(control, name, f"{addresses.host}:{port}", state.log(name))
            say("every kubelet is started")
            if plan.paper_nodes:
                add_paper_nodes(api, plan.paper_nodes)
            control.run(keeper(state, addresses.host))
            await_ready(
                state,
                api,
                [each.name for each in plan.nodes] + [each.name for each in plan.paper_nodes],
            )
            _label(api, plan.nodes)
            if plan.control_plane:
                staticpod.await_ready(api, plan.control_plane.name)
            _await_service_account(state, api)
    paper = f" and {len(plan.paper_nodes)} paper nodes" if plan.paper_nodes else ""
    say(f"up: {len(plan.nodes)} nodes{paper} are Ready")


def _record(plan: Plan, addresses: NetworkPlan) -> None:
    record = {
        "block": addresses.block,
        "version": str(plan.version),
        "gates": dict(plan.features.gates),
        "apis": dict(plan.features.apis),
        "binaries": str(plan.binaries),
        "nodes": [each.name for each in plan.nodes],
        "controlPlane": plan.control_plane.name if plan.control_plane else None,
    }
    plan.state.record.write_text(json.dumps(record, indent=2), encoding="utf-8")


def _component_starter(plan: Plan, control: Control) -> Callable[[str, list[str]], None]:
    env = base_environment(plan.state)

    def start(name: str, arguments: list[str]) -> None:
        control.run(ProcessSpec(name, (str(plan.binaries / name), *arguments), env))

    return start


def _write_images(plan: Plan) -> Path:
    path = plan.state.path / "images.tar"
    images = [
        Image(PAUSE, plan.binaries / "pause"),
        Image(WORKLOAD, plan.binaries / "workload"),
        Image(CUDA_WORKLOAD, plan.binaries / "workload", environment=CUDA_ENVIRONMENT),
        Image(GREEDY_WORKLOAD, plan.binaries / "workload", environment=GREEDY_ENVIRONMENT),
    ]
    if plan.control_plane:
        binary = plan.binaries / controlplane.SCHEDULER
        images.append(Image(_scheduler_image(plan.version), binary, folder="usr/local/bin/"))
    path.write_bytes(archive(images))
    return path


def _scheduler_image(version: Version) -> str:
    return f"{SCHEDULER}:{version.release}"


def _prepare(node: Node, control: Control, images: Path) -> None:
    node.prepare(images)
    if node.spec.control_plane:
        staticpod.write(
            node.state,
            node.spec.name,
            _scheduler_image(node.version),
            version=node.version,
            flags=node.features.gate_flags,
        )
    node.start_runtime(control)


def _start_kubelets(nodes: list[Node], prepared: list[Future[None]], control: Control) -> None:
    for node, ready in zip(nodes, prepared, strict=True):
        ready.result()
        node.start_kubelet(control)


def _await_api_server(state: StateFolder, api: Api) -> None:
    def seen() -> str | None:
        try:
            api.get("/readyz")
        except ApiError as problem:
            return str(problem)
        return None

    log = state.log(controlplane.API_SERVER)
    wait_until("kube-apiserver to be ready", seen, seconds=_API_SECONDS, log=log, interval=0.1)


def await_ready(
    state: StateFolder, api: Api, names: Sequence[str], *, seconds: float = _READY_SECONDS
) -> None:
    """Return once all named nodes are Ready and schedulable; raise DeadlineError."""

    def seen() -> str | None:
        try:
            found = {each["metadata"]["name"]: each for each in api.get("/api/v1/nodes")["items"]}
        except ApiError as problem:
            return str(problem)
        waiting = [name for name in names if not _is_ready(found.get(name, {}))]
        return f"not Ready: {', '.join(waiting)}" if waiting else None

    log = None
    kubelets = [each for each in names if state.log(f"kubelet-{each}").exists()]
    if kubelets:
        log = state.log(f"kubelet-{kubelets[0]}")
    wait_until(f"nodes {', '.join(names[:5])} to be Ready", seen, seconds=seconds, log=log)


def ready_condition(node: dict[str, object]) -> str:
    """Return `True`, `False` or `Unknown`: the status of a Node's Ready condition."""
    status = node.get("status")
    conditions = status.get("conditions", []) if isinstance(status, dict) else []
    return next((each["status"] for each in conditions if each["type"] == "Ready"), "Unknown")


def _is_ready(node: dict[str, object]) -> bool:
    spec = node.get("spec")
    taints = spec.get("taints", []) if isinstance(spec, dict) else []
    return ready_condition(node) == "True" and not taints


def _label(api: Api, nodes: tuple[NodeSpec, ...]) -> None:
    # By the administrator: NodeRestriction lets a kubelet set only some labels.
    for node in nodes:
        labels = dict(node.labels)
        body: dict[str, Any] = {"metadata": {"labels": labels}}
        if node.control_plane:
            labels[CONTROL_PLANE] = ""
            body["spec"] = {"taints": [{"key": CONTROL_PLANE, "effect": "NoSchedule"}]}
        if labels:
            merge = "application/merge-patch+json"
            api.request("PATCH", f"/api/v1/nodes/{node.name}", body, content_type=merge)


def _await_service_account(state: StateFolder, api: Api) -> None:
    def seen() -> str | None:
        try:
            api.get("/api/v1/namespaces/default/serviceaccounts/default")
            api.get("/api/v1/namespaces/default/configmaps/kube-root-ca.crt")
        except ApiError as problem:
            return str(problem)
        return None

    log = state.log(controlplane.CONTROLLER_MANAGER)
    what = "the default ServiceAccount, without which no pod can be created"
    wait_until(what, seen, seconds=_API_SECONDS, log=log)
