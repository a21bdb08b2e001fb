"""Pods that request GPU memory and print what they received."""

import contextlib
import json
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from localcluster import cgroups
from localcluster.cluster import Cluster
from localcluster.errors import ApiError, UsageError
from localcluster.images import WORKLOAD
from localcluster.nvml import read_minors
from localcluster.printed import Printed, read_log
from localcluster.wait import wait_until

HOSTNAME: Final = "kubernetes.io/hostname"
RESOURCE: Final = "aliyun.com/gpu-mem"
PRIORITY_CLASSES: Final = "/apis/scheduling.k8s.io/v1/priorityclasses"
_NOT_FOUND: Final = 404


def container(name: str, units: int | str | None, env: Mapping[str, str] | None = None) -> Any:
    """Describe a container of the sample workload; without units it requests no GPU memory."""
    described: dict[str, Any] = {
        "name": name,
        "image": WORKLOAD,
        "imagePullPolicy": "Never",
        "env": [{"name": key, "value": value} for key, value in (env or {}).items()],
    }
    if units is not None:
        described["resources"] = {"limits": {RESOURCE: str(units)}}
    return described


def pod(
    name: str,
    units: int | str | None = None,
    *,
    node: str = "",
    containers: Sequence[Any] = (),
    env: Mapping[str, str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """Describe a pod, with one container of ``units`` unless ``containers`` are given.

    ``node`` is a node selector, so that the pod still goes through the scheduler.
    """
    described: dict[str, Any] = {
        "containers": list(containers) or [container("main", units, env)],
        "terminationGracePeriodSeconds": 30,
        **spec,
    }
    if node:
        described["nodeSelector"] = {HOSTNAME: node}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **(metadata or {})},
        "spec": described,
    }


def create_priority_classes(cluster: Cluster, values: Mapping[str, int]) -> None:
    """Create PriorityClasses, by name."""
    with cluster.api() as api:
        for name, value in values.items():
            described = {
                "apiVersion": "scheduling.k8s.io/v1",
                "kind": "PriorityClass",
                "metadata": {"name": name},
                "value": value,
            }
            api.request("POST", PRIORITY_CLASSES, described)


@dataclass(frozen=True)
class Workloads:
    """Pods of one namespace of a local cluster. Waiting methods raise DeadlineError."""

    cluster: Cluster
    namespace: str = "default"

    def create(self, *pods: Mapping[str, Any]) -> None:
        """Create pods, in this order."""
        with self.cluster.api() as api:
            for described in pods:
                api.request("POST", self._path(), dict(described))

    def deploy(self, name: str, *, replicas: int, units: int, node: str = "") -> None:
        """Create a Deployment of pods with the label `app` of its name."""
        labels = {"app": name}
        template = pod("", units, node=node, metadata={"labels": labels})
        described = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name},
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": template["spec"]},
            },
        }
        words = ("create", "-n", self.namespace, "-f", "-")
        self.cluster.kubectl(*words, stdin=json.dumps(described))

    def get(self, name: str) -> dict[str, Any]:
        """Read a pod; ApiError 404 if it does not exist."""
        with self.cluster.api() as api:
            found: dict[str, Any] = api.get(self._path(name))
        return found

    def all(self, selector: str = "") -> list[dict[str, Any]]:
        """Read all pods, or those of a label selector."""
        query = f"?labelSelector={selector}" if selector else ""
        with self.cluster.api() as api:
            items: list[dict[str, Any]] = api.get(self._path() + query)["items"]
        return items

    def run(self, *pods: Mapping[str, Any], seconds: float = 60) -> None:
        """Create pods and return once all of them run.

        Where the kubelet does not report which pod it admits, the plugin rejects equal pods that
        come at the same time. There each is created once the one before it runs.
        """
        rounds = [pods] if self.cluster.version.reports_pods else [[each] for each in pods]
        for some in rounds:
            self.create(*some)
            names = [described["metadata"]["name"] for described in some]
            self.wait_running(*names, seconds=seconds)

    def wait_running(self, *names: str, seconds: float = 60) -> None:
        """Return once every container of these pods runs."""

        def unready() -> str | None:
            found = {each["metadata"]["name"]: each for each in self.all()}
            waiting = [name for name in names if not is_running(found.get(name))]
            return f"{waiting[0]}: {describe(found.get(waiting[0]))}" if waiting else None

        wait_until(f"pods running: {', '.join(names)}", unready, seconds=seconds)

    def delete(self, *names: str, seconds: float = 60, grace: int | None = None) -> None:
        """Delete pods and return once they are gone."""
        body = {} if grace is None else {"gracePeriodSeconds": grace}
        with self.cluster.api() as api:
            for name in names:
                api.request("DELETE", self._path(name), body)
        self.wait_gone(*names, seconds=seconds)

    def delete_all(self, *, seconds: float = 60) -> None:
        """Delete every pod, and the Deployments that would create them again."""
        path = f"/apis/apps/v1/namespaces/{self.namespace}/deployments"

        def unanswered() -> str | None:  # many pods take longer than an answer is waited for
            try:
                with self.cluster.api() as api:
                    api.request("DELETE", path, {"propagationPolicy": "Background"})
                    api.request("DELETE", self._path() + "?gracePeriodSeconds=1")
            except ApiError as problem:
                if problem.status:
                    raise
                return str(problem)
            return None

        def left() -> str | None:
            names = [each["metadata"]["name"] for each in self.all()]
            return ", ".join(names) or None

        wait_until("all pods to be deleted", unanswered, seconds=seconds)
        wait_until("no pod left", left, seconds=seconds)

    def wait_gone(self, *names: str, seconds: float = 60) -> None:
        """Return once the API server no longer has these pods."""

        def left() -> str | None:
            found = {each["metadata"]["name"] for each in self.all()}
            return ", ".join(name for name in names if name in found) or None

        wait_until(f"pods gone: {', '.join(names)}", left, seconds=seconds)

    def printed(self, name: str, container_name: str = "main") -> Printed:
        """Return what a container printed at its last start; wait until it has.

        It is read from the node's log file, which is cheaper than kubectl.
        """
        found: list[Printed] = []

        def incomplete() -> str | None:
            printed = self.printed_by(self.get(name), container_name)
            found[:] = [printed] if printed else []
            return None if printed else "nothing, or not all of it"

        wait_until(f"{name} to print its environment", incomplete, seconds=60)
        return found[0]

    def printed_by(self, described: Mapping[str, Any], container_name: str) -> Printed | None:
        """Return what a container of a pod printed at its last start; None until it has."""
        metadata, node = described["metadata"], described["spec"].get("nodeName")
        if node is None:
            return None
        pod_folder = f"{self.namespace}_{metadata['name']}_{metadata['uid']}"
        folder = self.cluster.node_folder(node) / "log/pods" / pod_folder / container_name
        logs = sorted(folder.glob("[0-9]*.log"), key=lambda path: int(path.stem))
        return read_log(logs[-1].read_text(errors="replace")) if logs else None

    def environment(self, name: str, container_name: str = "main") -> Mapping[str, str]:
        """Return the variables that a container printed at its start; wait until it has."""
        return self.printed(name, container_name).environment

    def cards(self, name: str, container_name: str = "main") -> list[str]:
        """Return the UUIDs of the cards whose device nodes a container has; wait until it tells."""
        node = self.cluster.node_folder(self.get(name)["spec"]["nodeName"])
        by_minor = {minor: uuid for uuid, minor in read_minors(node / "nvml" / "state").items()}
        return sorted(by_minor[minor] for minor in self.printed(name, container_name).minors)

    def annotations(self, name: str) -> dict[str, str]:
        """Return a pod's annotations."""
        found: dict[str, str] = self.get(name)["metadata"].get("annotations", {})
        return found

    def events(self, name: str) -> list[str]:
        """Return the messages of a pod's events, oldest first."""
        path = (
            f"/api/v1/namespaces/{self.namespace}/events?fieldSelector=involvedObject.name={name}"
        )
        with self.cluster.api() as api:
            return [str(item["message"]) for item in api.get(path)["items"]]

    def kill_container(self, name: str) -> None:
        """Kill a pod's workload from outside, as the kernel's OOM killer does."""
        found = cgroups.running(self.cluster.state.cgroup, "workload", f"HOSTNAME={name}")
        if not found:
            raise UsageError(f"no workload of a pod {name!r} runs in this cluster")
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def exists(self, name: str) -> bool:
        """Return whether the API server still has the pod."""
        try:
            self.get(name)
        except ApiError as err:
            if err.status == _NOT_FOUND:
                return False
            raise
        return True

    def _path(self, name: str = "") -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods" + (f"/{name}" if name else "")


def is_running(found: Mapping[str, Any] | None) -> bool:
    """Return whether every container of a pod runs."""
    if found is None or found["status"].get("phase") != "Running":
        return False
    statuses = found["status"].get("containerStatuses", [])
    return bool(statuses) and all("running" in each["state"] for each in statuses)


def describe(found: Mapping[str, Any] | None) -> str:
    """Return one line that says why a pod does not run."""
    if found is None:
        return "not there"
    status = found["status"]
    states = [each["state"] for each in status.get("containerStatuses", [])]
    words = [status.get("phase", ""), status.get("reason", ""), status.get("message", "")]
    words += [each["message"] for each in status.get("conditions", []) if each.get("message")]
    return " ".join(word for word in [*words, json.dumps(states) if states else ""] if word)
