"""Quotas and the order of the queue on a real kube-scheduler."""

import json
from collections.abc import Iterator

import pytest

from localcluster.cluster import Cluster
from localcluster.errors import ApiError
from localcluster.gpushare import Gpushare
from localcluster.wait import wait_until
from localcluster.workloads import Workloads
from tests.cluster.gangs import bound, gpu_nodes, member, on_stage
from tests.cluster.gated import GATE, left
from tests.cluster.history import History
from tests.trials.cards_over_time import asked

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("gates")]

NODE = "queue-1"  # with two GPUs of 16 units
GATED = {"schedulingGates": [{"name": GATE}]}
NAMES = "team-a", "team-b"


@pytest.fixture
def teams(gpushare: Gpushare) -> Iterator[list[Workloads]]:
    """Give two namespaces with the queue, which are empty, and GPUs for their pods."""
    cluster = gpushare.cluster
    with gpu_nodes(gpushare, {NODE: "a"}):
        made = [Workloads(cluster, name) for name in NAMES]
        for each in made:
            make_namespace(cluster, each.namespace)
        yield made
        for each in made:
            empty(each)
            limit(cluster, each, None)


def make_namespace(cluster: Cluster, name: str) -> None:
    """Create a namespace with the queue unless it exists; return once pods can be created in it."""
    meta = {"name": name, "labels": {"gpushare.aliyun.com/queue": "true"}}
    described = {"apiVersion": "v1", "kind": "Namespace", "metadata": meta}
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(described))

    def missing() -> str | None:
        with cluster.api() as api:
            try:
                api.get(f"/api/v1/namespaces/{name}/serviceaccounts/default")
            except ApiError as err:
                return str(err)
        return None

    wait_until("the namespace's ServiceAccount", missing, seconds=30)


def empty(team: Workloads) -> None:
    """Delete the Deployments and all pods: no kubelet ends these."""
    cluster, path = team.cluster, f"/api/v1/namespaces/{team.namespace}/pods"
    cluster.kubectl("delete", "deployments", "--all", "-n", team.namespace)

    def some() -> str | None:
        with cluster.api() as api:
            api.request("DELETE", path, {"gracePeriodSeconds": 0})
        return ", ".join(_all(team)) or None

    wait_until("no pod in the namespace", some, seconds=60)


def limit(cluster: Cluster, team: Workloads, quota: int | None) -> None:
    annotation = "gpushare.aliyun.com/quota"
    value = f"{annotation}-" if quota is None else f"{annotation}={quota}"
    cluster.kubectl("annotate", "namespace", team.namespace, "--overwrite", value)


def wait_bound(team: Workloads, count: int) -> None:
    def other() -> str | None:
        found = bound(team)
        return None if len(found) == count else f"{len(found)} are"

    wait_until(f"{count} pods of {team.namespace} to be bound", other, seconds=40)


def most_used(history: History, namespace: str, begun: int) -> int:
    """Return the most units that its pods have used at a time, since so many changes."""
    used: dict[str, int] = {}
    most = 0
    for change in history.changes[begun:]:
        if change.pod["metadata"]["namespace"] == namespace:
            used[change.uid] = asked(change) if change.node and not change.has_ended else 0
            most = max(most, sum(used.values()))
    return most


def test_a_quota_holds_for_pods_of_all_owners_with_and_without_a_gate(
    cluster: Cluster, teams: list[Workloads], history: History
):
    team, begun = teams[0], len(history.changes)
    limit(cluster, team, 16)
    team.deploy("deployed", replicas=3, units=4, node=NODE)
    team.create(*(on_stage(f"bare-{number}", 4, **GATED) for number in range(2)))
    team.create(*(member("gang", number, 2, 4, is_gated=True) for number in range(2)))
    wait_bound(team, 4)
    first = set(bound(team))
    cluster.kubectl("scale", "deployment/deployed", "-n", team.namespace, "--replicas=0")
    team.delete(*(name for name in first if not name.startswith("deployed")), grace=0)
    for name in first:
        if name.startswith("deployed"):
            team.delete(name, grace=0)
    wait_until(
        "the rest to be bound",
        lambda: None if set(bound(team)) == _all(team) else str(bound(team)),
        seconds=40,
    )
    assert most_used(history, team.namespace, begun) == 16


def _all(team: Workloads) -> set[str]:
    return {each["metadata"]["name"] for each in team.all()}


def test_freed_gpus_go_to_the_namespace_that_uses_less_of_its_quota(
    cluster: Cluster, teams: list[Workloads]
):
    early, late = teams
    for team in teams:
        limit(cluster, team, 32)
    early.create(*(on_stage(f"early-{number}", 8, **GATED) for number in range(8)))
    wait_bound(early, 4)
    late.create(*(on_stage(f"late-{number}", 8, **GATED) for number in range(4)))
    early.delete(*list(bound(early))[:2], grace=0)
    wait_bound(late, 2)
    assert len(bound(early)) == 2


def test_a_killed_extender_knows_what_namespaces_use(
    cluster: Cluster, gpushare: Gpushare, teams: list[Workloads], history: History
):
    team, begun = teams[1], len(history.changes)
    limit(cluster, team, 16)
    team.create(*(on_stage(f"gated-{number}", 4, **GATED) for number in range(6)))
    wait_until("a pod to be bound", lambda: None if bound(team) else "none is", seconds=40)
    cluster.kill("extender")
    team.create(*(on_stage(f"free-{number}", 4) for number in range(6)))
    gpushare.wait_ready()
    wait_bound(team, 4)
    team.delete(*list(bound(team))[:2], grace=0)
    wait_bound(team, 4)
    assert most_used(history, team.namespace, begun) == 16


def test_with_gates_off_nothing_stays_gated_and_quotas_still_hold(
    cluster: Cluster, gpushare: Gpushare, teams: list[Workloads]
):
    team = teams[0]
    limit(cluster, team, 8)
    team.create(*(on_stage(f"gated-{number}", 4, **GATED) for number in range(20)))
    wait_bound(team, 2)
    assert left(cluster, team.namespace) == 18
    gpushare.restart_extender(gates=False)
    try:
        wait_until(
            "no pod to be gated",
            lambda: f"{number} are" if (number := left(cluster, team.namespace)) else None,
            seconds=30,
        )
        team.delete(*list(bound(team))[:1], grace=0)
        wait_bound(team, 2)
    finally:
        gpushare.restart_extender()
