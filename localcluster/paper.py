"""Paper nodes: Node objects without a kubelet, kept Ready by renewing their Leases.

A longer grace period in the controller manager would do that too, but would delay noticing a real
node that stops answering.
"""

import contextlib
import datetime as dt
import sys
from pathlib import Path
from typing import Any

from localcluster.api import Api
from localcluster.control import base_environment
from localcluster.errors import ApiError
from localcluster.specs import PaperNode
from localcluster.state import StateFolder
from localcluster.supervised import ProcessSpec

KEEPER = "paper-nodes"
LABEL = "localcluster/paper"


def node_object(node: PaperNode) -> dict[str, Any]:
    """Return the Node to create: Ready, with its resources.

    It has a heartbeat. Otherwise the controller manager would take a node that was deleted and
    created again at once for the former one, and mark it as unreachable for good once that one's
    time is over (pkg/controller/nodelifecycle/node_lifecycle_controller.go, tryUpdateNodeHealth).
    """
    capacity = node.full_capacity()
    now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    condition = {
        "type": "Ready",
        "status": "True",
        "reason": "Paper",
        "message": "no kubelet",
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": node.name,
            "labels": {LABEL: "true", "kubernetes.io/hostname": node.name, **node.labels},
            "annotations": dict(node.annotations),
        },
        "status": {
            "capacity": capacity,
            "allocatable": {**capacity, **node.allocatable},
            "conditions": [condition],
        },
    }


def add_paper_nodes(api: Api, nodes: tuple[PaperNode, ...]) -> None:
    """Create the Node objects; raises ApiError if one already exists."""
    for node in nodes:
        api.request("POST", "/api/v1/nodes", node_object(node))


def delete_pods_of(api: Api, node: str) -> None:
    """Delete every pod bound to a node at once, without asking a kubelet."""
    for pod in api.get(f"/api/v1/pods?fieldSelector=spec.nodeName%3D{node}")["items"]:
        place, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        with contextlib.suppress(ApiError):
            path = f"/api/v1/namespaces/{place}/pods/{name}"
            api.request("DELETE", path, {"gracePeriodSeconds": 0})


def keeper(state: StateFolder, host: str) -> ProcessSpec:
    """Return the process that keeps all paper nodes of the cluster Ready."""
    env = {**base_environment(state), "PYTHONPATH": str(Path(__file__).resolve().parent.parent)}
    argv = (sys.executable, "-m", "localcluster.leases", state.name, str(state.path), host)
    return ProcessSpec(KEEPER, argv, env)
