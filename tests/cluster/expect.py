"""Waits and checks of cluster tests: containers got the cards that their pods' annotations name."""

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec

from localcluster.cluster import Cluster
from localcluster.errors import ApiError
from localcluster.gpushare import CARD_MIB, Gpushare
from localcluster.wait import wait_until
from localcluster.workloads import Workloads, pod

CARDS = "gpushare.aliyun.com/cards"
RUNNING_ON = "gpushare.aliyun.com/running-on"
ASSIGNED = "ALIYUN_COM_GPU_MEM_ASSIGNED"
RESOURCE = "aliyun.com/gpu-mem"
# ``make soak`` sets it, for cases that differ from others only in number or combination.
LONG = bool(os.environ.get("GPUSHARE_LONG"))


def assigned(pods: Workloads, *names: str) -> None:
    """Wait until the plugin has written that these pods run, and where."""

    def missing() -> str | None:
        late = [name for name in names if pods.annotations(name).get(ASSIGNED) != "true"]
        return ", ".join(late) or None

    wait_until("ASSIGNED on every pod", missing, seconds=60)


def wait_established(cluster: Cluster, *names: str) -> None:
    """Wait until the API server serves these CustomResourceDefinitions.

    ``kubectl wait`` fails on one that has no conditions yet.
    """

    def missing() -> str | None:
        found = json.loads(cluster.kubectl("get", "crd", *names, "-o", "json"))
        late = [
            each["metadata"]["name"]
            for each in found.get("items", [found])
            if not any(
                condition["type"] == "Established" and condition["status"] == "True"
                for condition in each.get("status", {}).get("conditions") or ()
            )
        ]
        return ", ".join(late) or None

    wait_until("CustomResourceDefinitions to be established", missing, seconds=30)


def wait_event(pods: Workloads, name: str, text: str) -> None:
    """Wait until an Event of a pod has this text."""

    def missing() -> str | None:
        found = pods.events(name)
        return None if any(text in each for each in found) else str(found)[:2000]

    wait_until(f"an Event of {name} with {text!r}", missing, seconds=90)


def wait_bound(pods: Workloads, *names: str) -> None:
    """Wait until these pods are bound."""

    def missing() -> str | None:
        late = [name for name in names if not pods.get(name)["spec"].get("nodeName")]
        return ", ".join(late) or None

    wait_until("pods to be bound", missing, seconds=60)


def decided(name: str, node: str, units: int, *, cards: str = "", **fields: str) -> dict[str, Any]:
    """Describe a pod as a Binding to card 0 of a node leaves it.

    Without ``cards`` the Binding is one of Aliyun gpushare's extender. ``fields`` replace
    annotations by the ends of their names, as ``IDX="1"``.
    """
    ends = {
        "IDX": "0",
        "POD": str(units),
        "DEV": str(CARD_MIB),
        "ASSUME_TIME": str(time.time_ns()),
        "ASSIGNED": "false",
    }
    annotations = {f"ALIYUN_COM_GPU_MEM_{end}": value for end, value in (ends | fields).items()}
    if cards:
        annotations[CARDS] = cards
    return pod(name, units, nodeName=node, metadata={"annotations": annotations})


def by_hand(name: str, node: str, **metadata: Any) -> dict[str, Any]:
    """Describe a Binding of a pod to a node."""
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name, "namespace": "default", **metadata},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }


def bind_by_hand(pods: Workloads, described: dict[str, Any], node: str) -> None:
    """Create a pod that no scheduler takes, and bind it without a decision, as a scheduler may."""
    name = described["metadata"]["name"]
    described["spec"]["schedulerName"] = "nobody"
    pods.create(described)
    with pods.cluster.api() as api:
        path = f"/api/v1/namespaces/default/pods/{name}/binding"
        api.request("POST", path, by_hand(name, node))


def env_is_card_on_record(pods: Workloads, *names: str) -> dict[str, str]:
    """Check invariant 4 for every container; return each pod's UUIDs.

    A container has the device nodes of its pod's cards and no other; without gpu-mem it has none.
    """
    assigned(pods, *names)
    found = {}
    for name in names:
        described = pods.get(name)
        annotations, spec = described["metadata"]["annotations"], described["spec"]
        running_on = msgspec.json.decode(annotations[RUNNING_ON])
        uuids = annotations[CARDS]
        for container in [*spec.get("initContainers", []), *spec["containers"]]:
            limits = container.get("resources", {}).get("limits", {})
            cards = ",".join(pods.cards(name, container["name"]))
            if RESOURCE not in limits:
                assert not cards, f"{name} {container['name']} has {cards}"
                continue
            assert cards == ",".join(sorted(uuids.split(","))), f"{name} {container['name']}"
            environment = pods.environment(name, container["name"])
            own = environment.get("GPUSHARE_CARD_UUID") or environment["NVIDIA_VISIBLE_DEVICES"]
            assert own == uuids, name
            assert ",".join(running_on[container["name"]]) == uuids, name
        found[name] = uuids
    return found


def bind(gpushare: Gpushare, name: str, uid: str, node: str) -> str:
    """Ask the extender for a binding without kube-scheduler; return its error."""
    body = {"PodName": name, "PodNamespace": "default", "PodUID": uid, "Node": node}
    _, answer = gpushare.call("POST", "/gpushare-scheduler/bind", body)
    return str(answer["Error"])


def wait_api_server(pods: Workloads) -> None:
    """Wait until the API server answers."""

    def unanswered() -> str | None:
        try:
            pods.all()
        except ApiError as err:
            return str(err)
        return None

    wait_until("the API server", unanswered, seconds=60)


def wait_plugin(gpushare: Gpushare, node: str) -> None:
    """Wait until a node's plugin answers."""

    def unanswered() -> str | None:
        try:
            gpushare.plugin_metrics(node)
        except ApiError as err:
            return str(err)
        return None

    wait_until("the plugin to answer", unanswered, seconds=60)


def sums_are_right(gpushare: Gpushare, pods: Workloads) -> None:
    """Check that every card holds exactly what its live pods were granted, and no more."""
    wanted: dict[tuple[str, str], int] = {}
    for described in pods.all():
        node = described["spec"].get("nodeName")
        asks = RESOURCE in json.dumps(described["spec"])
        if not asks or not node or described["status"]["phase"] in {"Succeeded", "Failed"}:
            continue
        annotations = described["metadata"].get("annotations", {})
        uuids = annotations.get(CARDS, "").split(",")
        for uuid in uuids:
            units = int(annotations["ALIYUN_COM_GPU_MEM_POD"]) // len(uuids)
            wanted[node, uuid] = wanted.get((node, uuid), 0) + units
    for node in gpushare.inspect():
        for card in node["devs"]:
            assert card["usedGPU"] == wanted.get((node["name"], card["uuid"]), 0), card
            assert card["usedGPU"] + card["reserved"] <= card["totalGPU"], card


def unregistered(gpushare: Gpushare, node: str) -> str | None:
    """Return nothing once the kubelet of a node reads the plugin's device list."""
    is_registered = "gpushare_deviceplugin_registered 1.0" in gpushare.plugin_metrics(node)
    return None if is_registered else "the kubelet does not read its device list"


@contextmanager
def api_server_paused(cluster: Cluster) -> Iterator[None]:
    """Let the API server answer nobody meanwhile, so that a new kubelet gets no pods yet."""
    cluster.kill("kube-apiserver", signal.SIGSTOP)
    try:
        yield
    finally:
        cluster.kill("kube-apiserver", signal.SIGCONT)


def start_kubelet(gpushare: Gpushare, node: str) -> None:
    """Start a node's kubelet, which gets its pods once the plugin has registered.

    A kubelet fails the pods that it admits before. It admits them at the first of 0.1, 0.3, 0.7,
    1.5, ... seconds at which its runtime is up (kubelet.go, syncLoop), so the plugin has anything
    from no time to a second for its registration.
    """
    with api_server_paused(gpushare.cluster):
        gpushare.cluster.start(f"kubelet-{node}")
        wait_until("the plugin to register", lambda: unregistered(gpushare, node), seconds=60)


def let_kubelet_forget(pods: Workloads, node: str) -> None:
    """Make a node's kubelet forget the pods that have ended, as only an Allocate does.

    Otherwise a restarted kubelet lacks their units for the first new pods.
    """
    pods.run(pod("makes-the-kubelet-forget", 1, node=node))
    pods.delete("makes-the-kubelet-forget", grace=1)


def checkpoint(cluster: Cluster, node: str) -> list[dict[str, Any]]:
    """Read the kubelet's own record of who holds which device IDs of ours on a node."""
    path = cluster.node_folder(node) / "kubelet/device-plugins/kubelet_internal_checkpoint"
    entries = msgspec.json.decode(path.read_bytes())["Data"]["PodDeviceEntries"]
    return [entry for entry in entries if entry["ResourceName"] == RESOURCE]


def ids_by_card(gpushare: Gpushare, pods: Workloads, node: str, name: str) -> dict[str, int]:
    """Count a pod's kubelet device IDs by the UUID of the card that each belongs to."""
    with gpushare.cluster.api() as api:
        annotations = api.get(f"/api/v1/nodes/{node}")["metadata"]["annotations"]
    inventory = msgspec.json.decode(annotations["gpushare.aliyun.com/inventory"])
    by_tag = {card["tag"]: card["uuid"] for card in inventory["cards"]}
    uid = pods.get(name)["metadata"]["uid"]
    return Counter(
        by_tag[device[:2]]
        for entry in checkpoint(gpushare.cluster, node)
        if entry["PodUID"] == uid
        for devices in entry["DeviceIDs"].values()
        for device in devices
    )


def refusal(workloads: Workloads, described: Mapping[str, Any]) -> str:
    """Create a pod; return why the API server refuses it, empty if it does not."""
    try:
        workloads.create(described)
    except ApiError as err:
        return str(err)
    return ""


def create_again(workloads: Workloads, described: Mapping[str, Any]) -> None:
    """Create a pod as a controller does: again, until the API server has noticed the webhook."""
    name = described["metadata"]["name"]
    wait_until(f"{name} to be created", lambda: refusal(workloads, described) or None, seconds=60)
