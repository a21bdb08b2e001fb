"""Karpenter on a local cluster, with nodes that exist only as objects: its own KWOK provider.

Its simulation, its batching and its NodeClaims are the real ones. Nothing starts on its nodes, so
`boot` and `serve` write what a kubelet and gpushare's plugin would.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from gpushare.annotations import inventory
from gpushare.cards.model import Card, Inventory
from localcluster import paper
from localcluster.cluster import Cluster
from localcluster.errors import ApiError
from localcluster.gpushare import INVENTORY, Gpushare
from localcluster.tools import tool_module
from localcluster.wait import wait_until
from localcluster.workloads import RESOURCE
from tests.cluster.expect import wait_established
from tests.cluster.test_access import patch

PROGRAM: Final = "karpenter"
POOL: Final = "gpu"
TYPE: Final = "gpu-node"
MERGE: Final = "application/merge-patch+json"
_MODULE: Final = "sigs.k8s.io/karpenter"
_COUNT: Final = "aliyun.com/gpu-count"
_CLAIMS: Final = "/apis/karpenter.sh/v1/nodeclaims"


class Karpenter:
    """Karpenter whose only instance type has ``cards`` GPUs of ``units`` each."""

    def __init__(self, cluster: Cluster, cards: int, units: int) -> None:
        self.cluster, self._cards, self._units = cluster, cards, units

    def start(self, program: Path, folder: Path) -> None:
        """Install and start it; ``folder`` takes the description of the instance type."""
        crds = tool_module("kwok", _MODULE)
        for name in ("pkg/apis/crds", "kwok/apis/crds"):
            self.cluster.kubectl("apply", "--server-side", "-f", str(crds / name))
        names = (
            "nodepools.karpenter.sh",
            "nodeclaims.karpenter.sh",
            "kwoknodeclasses.karpenter.kwok.sh",
        )
        wait_established(self.cluster, *names)
        types = folder / "instance-types.json"
        types.write_text(json.dumps([self._instance_type()]))
        for described in (_node_class(), self._pool()):
            self.cluster.kubectl("apply", "-f", "-", stdin=json.dumps(described))
        env = {
            "KUBECONFIG": str(self.cluster.kubeconfig),
            "INSTANCE_TYPES_FILE_PATH": str(types),
            "SYSTEM_NAMESPACE": "kube-system",
            "DISABLE_LEADER_ELECTION": "true",
        }
        self.cluster.start_program(PROGRAM, [str(program)], env=env)
        wait_until("NodeClaims to be served", self._unserved, seconds=30)

    def claims(self) -> list[dict[str, Any]]:
        with self.cluster.api() as api:
            found: list[dict[str, Any]] = api.get(_CLAIMS)["items"]
        return sorted(found, key=lambda each: str(each["metadata"]["creationTimestamp"]))

    def wait_claims(self, count: int, *, seconds: float = 30) -> list[str]:
        """Wait until there are so many NodeClaims, all with Nodes; return the names of these."""

        def other() -> str | None:
            claims = self.claims()
            named = [each for each in claims if each.get("status", {}).get("nodeName")]
            return None if len(named) == len(claims) == count else f"{len(named)}/{len(claims)}"

        wait_until(f"{count} NodeClaims with Nodes", other, seconds=seconds)
        return [each["status"]["nodeName"] for each in self.claims()]

    def boot(self, name: str) -> None:
        """Make a Node Ready, without GPU memory yet, as its kubelet does."""
        with self.cluster.api() as api:
            status = api.get(f"/api/v1/nodes/{name}")["status"]
        plain = dict.fromkeys((RESOURCE, _COUNT))
        condition = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
        self._status(
            name,
            {
                "capacity": {**status["allocatable"], **plain},
                "allocatable": plain,
                "conditions": [condition],
                "phase": None,
            },
        )

    def serve(self, name: str) -> None:
        """Write what gpushare's device plugin writes on its node."""
        made = tuple(
            Card(index, f"GPU-{name}-{index}", self._units, tag=f"a{index}", minor=index)
            for index in range(self._cards)
        )
        text = inventory.encode(Inventory(1, made, "0.1.0", "late"))
        totals = self._totals()
        written = {
            "metadata": {"annotations": {INVENTORY: text}},
            "status": {"capacity": totals, "allocatable": totals},
        }
        gpushare = Gpushare(self.cluster)
        account = gpushare.plugin_kubeconfig(name)  # nobody else may write an inventory
        path = f"/api/v1/nodes/{name}/status"
        answer = patch(gpushare, account, path, json.dumps(written))
        assert answer == (200, ""), answer

    def _unserved(self) -> str | None:
        try:
            self.claims()
        except ApiError as err:
            return str(err)
        return None

    def _status(self, name: str, status: Mapping[str, Any]) -> None:
        with self.cluster.api() as api:
            path = f"/api/v1/nodes/{name}/status"
            api.request("PATCH", path, {"status": status}, content_type=MERGE)

    def _totals(self) -> dict[str, str]:
        return {RESOURCE: str(self._cards * self._units), _COUNT: str(self._cards)}

    def _instance_type(self) -> dict[str, Any]:
        offered = {"karpenter.sh/capacity-type": "on-demand", "topology.kubernetes.io/zone": "z"}
        requirements = [
            {"key": key, "operator": "In", "values": [value]} for key, value in offered.items()
        ]
        return {
            "name": TYPE,
            "offerings": [{"Price": 1, "Available": True, "Requirements": requirements}],
            "architecture": "amd64",
            "operatingSystems": ["linux"],
            "resources": {"cpu": "32", "memory": "128Gi", "pods": "110", **self._totals()},
        }

    def _pool(self) -> dict[str, Any]:
        reference = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": POOL}
        label = {paper.LABEL: "true"}  # the Node stays Ready
        template = {
            "metadata": {"labels": label},
            "spec": {
                "nodeClassRef": reference,
                "requirements": [{"key": "kubernetes.io/os", "operator": "Exists"}],
            },
        }
        return {
            "apiVersion": "karpenter.sh/v1",
            "kind": "NodePool",
            "metadata": {"name": POOL},
            "spec": {"template": template, "disruption": {"consolidateAfter": "Never"}},
        }


def _node_class() -> dict[str, Any]:
    return {
        "apiVersion": "karpenter.kwok.sh/v1alpha1",
        "kind": "KWOKNodeClass",
        "metadata": {"name": POOL},
    }
