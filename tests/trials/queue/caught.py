"""Pods of all owners get the gate, and wait in order if nothing has added it."""

import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from localcluster.wait import wait_until
from localcluster.workloads import pod
from tests.cluster.gated import admission_at, await_gating, by_policy, webhook_at
from tests.fakes.certificates import certificate
from tests.trials.queue.history import Seen
from tests.trials.queue.stage import UNITS, Described, Stage

EACH: Final = 3  # pods of each owner
_CRD: Final = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "trialjobs.trial.gpushare"},
    "spec": {
        "group": "trial.gpushare",
        "scope": "Namespaced",
        "names": {"plural": "trialjobs", "kind": "TrialJob"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object"}},
            }
        ],
    },
}
_KINDS: Final = "deployments,statefulsets,jobs"
OWNERS: Final = len(_KINDS.split(",")) + 2  # and pods of nobody, and of a custom resource


@dataclass
class Caught:
    """The controllers are those of the real kube-controller-manager."""

    stage: Stage

    def play(self) -> str:
        stage = self.stage
        stage.cluster.kubectl("apply", "-f", "-", stdin=json.dumps(_CRD))
        figures = []
        for how in (self._policy, self._webhook):
            with how() as name:
                figures.append(self._judge(name))
        stage.cluster.kubectl("delete", "crd", "trialjobs.trial.gpushare")
        stage.configure()
        return "; ".join(figures)

    def _judge(self, how: str) -> str:
        stage, space = self.stage, f"caught-{how}"
        stage.namespace(space, "0")
        await_gating(stage.cluster, space)
        first = self._create(space, "with")
        for seat in stage.seats.names:
            stage.cluster.stop(f"extender-{seat}")
        second = self._create(space, "without")
        for seat in stage.seats.names:
            stage.cluster.start(f"extender-{seat}")
        stage.seats.wait_leading_extender()
        caught = [sum(e.was_gated for e in each) for each in (first, second)]
        wanted = [EACH * OWNERS, EACH * OWNERS if how == "policy" else 0]
        if caught != wanted:
            stage.lost.append(f"caught by {how}: {caught} pods were gated, wanted {wanted}")
        # As many as fit are the oldest ones, whether they have the gate or not.
        bound = sum(e.is_bound for e in stage.history.present())
        if bound:
            stage.lost.append(f"caught by {how}: {bound} pods are above the quota of 0")
        self._check_order(space)
        kinds = f"{_KINDS},trialjobs"
        stage.cluster.kubectl("delete", kinds, "--all", "-n", space, "--wait=false")
        stage.clear()
        return (
            f"by {how}, of {EACH} pods of each of {OWNERS} owners {caught[0]} of {len(first)} got "
            f"the gate, {caught[1]} of {len(second)} while no extender ran"
        )

    def _create(self, space: str, name: str) -> list[Seen]:
        """Create pods by all kinds of owners; return them once the watch has shown them."""
        stage = self.stage
        before = {each.uid for each in stage.history.present()}
        kubectl = stage.cluster.kubectl
        for described in _controllers(name):
            kubectl("create", "-n", space, "-f", "-", stdin=json.dumps(described))
        with stage.cluster.api() as api:
            path = f"/apis/trial.gpushare/v1/namespaces/{space}/trialjobs"
            body = {"apiVersion": "trial.gpushare/v1", "kind": "TrialJob"}
            made = api.request("POST", path, body | {"metadata": {"name": name}})
            owner = {key: made[key] for key in ("apiVersion", "kind")} | {
                "name": name,
                "uid": made["metadata"]["uid"],
                "controller": True,
            }
            for number in range(EACH):
                described = Described(f"{name}-op-{number}", space, UNITS, is_gated=False).pod()
                described["metadata"]["ownerReferences"] = [owner]
                api.request("POST", f"/api/v1/namespaces/{space}/pods", described)
        stage.create(
            *(Described(f"{name}-bare-{n}", space, UNITS, is_gated=False) for n in range(EACH))
        )
        found: list[Seen] = []

        def missing() -> str | None:
            found[:] = [e for e in stage.history.present() if e.uid not in before]
            return None if len(found) == EACH * OWNERS else f"{len(found)} pods"

        wait_until("the pods of all owners", missing, seconds=60)
        return found

    def _check_order(self, space: str) -> None:
        """Let the first half and a few more be placed: they are the oldest ones."""
        stage, count = self.stage, EACH * OWNERS + EACH
        stage.set_quota(space, str(count * UNITS))

        def missing() -> str | None:
            number = sum(e.is_bound for e in stage.history.present())
            return None if number == count else f"{number} are"

        wait_until(f"{count} pods to be bound", missing, seconds=90)
        with stage.cluster.api() as api:
            items = api.get(f"/api/v1/namespaces/{space}/pods")["items"]
        created = {True: Counter[str](), False: Counter[str]()}
        for each in items:
            created["nodeName" in each["spec"]][each["metadata"]["creationTimestamp"]] += 1
        if max(created[True]) > min(created[False]):
            stage.lost.append(f"{space}: younger pods were placed first: {created}")

    @contextmanager
    def _policy(self) -> Iterator[str]:
        self.stage.configure()
        with by_policy(self.stage.cluster):
            yield "policy"

    @contextmanager
    def _webhook(self) -> Iterator[str]:
        with gated_by_webhook(self.stage):
            yield "webhook"


@contextmanager
def gated_by_webhook(stage: Stage) -> Iterator[None]:
    """Gate pods by the extender of the first seat."""
    host = stage.seats.address(stage.seats.names[0])
    with tempfile.TemporaryDirectory() as folder:
        own = certificate(Path(folder), "webhook", address=host)
        stage.configure(listen={"admission": admission_at("0.0.0.0", own)})
        with webhook_at(stage.cluster, host, own):
            yield
        stage.configure()


def _controllers(name: str) -> list[dict[str, Any]]:
    labels = {"app": name}
    spec = pod("", UNITS, terminationGracePeriodSeconds=0)["spec"]
    template = {"metadata": {"labels": labels}, "spec": spec}
    of_job = {"spec": {**spec, "restartPolicy": "Never"}}
    selector = {"matchLabels": labels}
    return [
        _controller("apps/v1", "Deployment", name, selector=selector, template=template),
        _controller(
            "apps/v1",
            "StatefulSet",
            name,
            selector=selector,
            template=template,
            serviceName="none",
            podManagementPolicy="Parallel",
        ),
        _controller("batch/v1", "Job", name, template=of_job),
    ]


def _controller(version: str, kind: str, name: str, **spec: Any) -> dict[str, Any]:
    number = {"parallelism": EACH, "completions": EACH} if kind == "Job" else {"replicas": EACH}
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": f"{name}-{kind.lower()}"},
        "spec": {**spec, **number},
    }
