"""Karpenter adds exactly the nodes that pods need, although it only adds up GPU memory."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from extender.decisions.autoscaling.body import body
from extender.decisions.autoscaling.placeholders import Placeholder
from gpushare.contract import ANNOTATION_CARDS, GATE_ADMISSION, LABEL_PLACEHOLDER
from gpushare.objects.model import Node, ObjectMeta, Pod
from localcluster.cluster import Cluster
from localcluster.errors import CommandError
from localcluster.gpushare import COMPONENTS, NAMESPACE, Gpushare
from localcluster.wait import wait_until
from localcluster.workloads import Workloads, pod
from tests.cluster.bringup import fresh, own_network
from tests.cluster.expect import wait_bound
from tests.cluster.karpenter import Karpenter
from tests.trials.stage import paper_gpu_node

pytestmark = pytest.mark.cluster

UNITS: Final = 16
LARGE: Final = 9  # two on two GPUs: none has room for a third one, the sum of both has
NODE: Final = "n1"
JSON: Final = "application/json-patch+json"


@dataclass(frozen=True)
class Stage:
    cluster: Cluster
    karpenter: Karpenter

    @property
    def pods(self) -> Workloads:
        return Workloads(self.cluster)

    def placeholders(self) -> list[dict[str, Any]]:
        return Workloads(self.cluster, NAMESPACE).all(LABEL_PLACEHOLDER)

    def run(self, *names: str, units: int = LARGE) -> None:
        self.pods.create(*(waiting(name, units) for name in names))
        wait_bound(self.pods, *names)

    def wait_simulated(self, name: str) -> None:
        """Wait until Karpenter has found that a pod fits on a node that exists."""

        def not_yet() -> str | None:
            found = [each for each in self.pods.events(name) if "should schedule on: " in each]
            return None if any("node/" in each for each in found) else str(found)

        wait_until(f"Karpenter to see {name}", not_yet, seconds=60)

    def new_node(self, count: int) -> str:
        """Wait for exactly so many nodes of Karpenter; boot the last one."""
        name = self.karpenter.wait_claims(count)[-1]
        self.karpenter.boot(name)
        self.karpenter.serve(name)
        return name


def waiting(name: str, units: int, **spec: Any) -> dict[str, Any]:
    return pod(name, units, terminationGracePeriodSeconds=0, **spec)


@pytest.fixture(scope="module")
def stage(kwok: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Bring up a node of two GPUs that are more than half used, and Karpenter."""
    nodes = [paper_gpu_node(NODE, 2, UNITS)]
    with own_network(), fresh((), nodes, name="gpushare-autoscaling") as cluster:
        gpushare, karpenter = Gpushare(cluster), Karpenter(cluster, 2, UNITS)
        gpushare.apply_access()
        cluster.kubectl("apply", "-f", str(COMPONENTS / "autoscaling" / "access.yaml"))
        gpushare.start_extender(queue={"autoscaled": False})
        karpenter.start(kwok, tmp_path_factory.mktemp("karpenter"))
        gpushare.wait_ready()
        made = Stage(cluster, karpenter)
        made.run("a", "b")
        yield made


def test_karpenter_adds_a_node_only_for_an_ungated_pod_that_fits_no_sum(stage: Stage):
    gates = [{"name": GATE_ADMISSION}]
    stage.pods.create(
        waiting("gated", UNITS - 1, schedulingGates=gates), waiting("hidden", LARGE - 1)
    )
    stage.wait_simulated("hidden")
    assert not stage.karpenter.claims()  # neither for the gated pod, nor for one that fits a sum
    stage.pods.delete("hidden", grace=0)
    with stage.cluster.api() as api:
        ungate = [{"op": "remove", "path": "/spec/schedulingGates"}]
        path = "/api/v1/namespaces/default/pods/gated"
        api.request("PATCH", path, ungate, content_type=JSON)
    name = stage.new_node(1)
    wait_bound(stage.pods, "gated")
    assert stage.pods.get("gated")["spec"]["nodeName"] == name
    assert stage.pods.annotations("gated")[ANNOTATION_CARDS].startswith(f"GPU-{name}-")


def test_a_placeholder_brings_the_one_node_that_a_pod_needs(stage: Stage):
    gpushare = Gpushare(stage.cluster)
    stage.run("c")  # on the other GPU of the new node
    gpushare.restart_extender(queue={"autoscaled": True})
    stage.pods.create(waiting("needy", LARGE))
    name = stage.new_node(2)
    wait_bound(stage.pods, "needy")
    assert stage.pods.get("needy")["spec"]["nodeName"] == name
    wait_until("no placeholder", lambda: str(stage.placeholders() or "") or None, seconds=30)
    # It fits on no GPU at all, and on the sum of the new node: Karpenter looks at it once more.
    stage.pods.create(waiting("too-large", UNITS + 1))
    stage.wait_simulated("too-large")
    assert len(stage.karpenter.claims()) == 2
    assert not stage.placeholders()


def test_the_extender_can_create_nothing_but_placeholders(stage: Stage):
    cluster = stage.cluster
    account = "--as=system:serviceaccount:gpushare-system:gpushare-extender"

    def refused(described: dict[str, Any]) -> str:
        words = [account, f"--namespace={NAMESPACE}", "create", "--dry-run=server", "-f", "-"]
        try:
            cluster.kubectl(*words, stdin=json.dumps(described))
        except CommandError as err:
            return str(err)
        return ""

    made = body(
        Placeholder(Pod(ObjectMeta("p", "default", "u")), Node(ObjectMeta("n")), {}), NAMESPACE
    )
    if not cluster.version.has_policies:
        pytest.skip(f"Kubernetes {cluster.version} has no ValidatingAdmissionPolicy: use 1.30")
    assert not refused(made)
    privileged = {"securityContext": {"privileged": True}}
    container = made["spec"]["containers"][0]
    for spec in (
        {"containers": [container | privileged]},
        {"hostNetwork": True},
        {"volumes": [{"name": "host", "hostPath": {"path": "/"}}]},
        {"nodeName": NODE},
        {"priorityClassName": "system-node-critical"},
    ):
        assert "gpushare-autoscaling" in refused(made | {"spec": made["spec"] | spec}), spec
    assert "gpushare-autoscaling" in refused(waiting("other", 1))
