"""gpushare from its image, applied from ``daemonset/`` with a kustomization like a user's.

Pods get nothing that their manifest does not request. A local cluster changes the unit of memory,
so that two small cards are many units, and declares that pods without a RuntimeClass run under
NVIDIA's runtime, the default on its nodes.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from localcluster.cluster import Cluster
from localcluster.errors import CommandError, DeadlineError
from localcluster.imagebuild import ROOT, image_name
from localcluster.wait import wait_until

DAEMONSET: Final = ROOT / "daemonset"
NAMESPACE: Final = "gpushare-system"
PLUGIN: Final = "gpushare-deviceplugin"
EXTENDER: Final = "gpushare-extender"
PLUGIN_PORT: Final = 29767
_CERTIFICATES: Final = "certificates"
_CONFIGURATION: Final = DAEMONSET / "base" / "configuration" / "extender.yaml"
_RUNTIME_CLASS: Final = {
    "apiVersion": "node.k8s.io/v1",
    "kind": "RuntimeClass",
    "metadata": {"name": "nvidia"},
    "handler": "nvidia",
}
_SECONDS: Final = 90


def components_for(cluster: Cluster) -> list[str]:
    """Return the components that a cluster of this version of Kubernetes needs."""
    return [] if cluster.version.has_policies else ["before-1.30"]


@dataclass(frozen=True)
class Shipped:
    """The contents of ``daemonset/``, on a cluster whose nodes have the image."""

    cluster: Cluster

    def make_certificates(self) -> None:
        """Create the replicas' certificates with the image's own command, once per cluster."""
        namespace = DAEMONSET / "base" / "access" / "namespace.yaml"
        self.cluster.kubectl("apply", "-f", str(namespace))
        self._await_account()
        spec = {
            "nodeName": self.cluster.control_plane,
            "restartPolicy": "Never",
            "containers": [
                {
                    "name": "main",
                    "image": image_name(),
                    "command": ["gpushare", "certificates"],
                }
            ],
        }
        described = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": _CERTIFICATES}}
        self._kubectl("create", "-f", "-", stdin=yaml.safe_dump({**described, "spec": spec}))

        def unfinished() -> str | None:
            phase = self._kubectl("get", "pod", _CERTIFICATES, "-o", "jsonpath={.status.phase}")
            return None if phase == "Succeeded" else phase

        wait_until("the certificates to be made", unfinished, seconds=_SECONDS)
        self.cluster.kubectl("apply", "-f", "-", stdin=self._kubectl("logs", _CERTIFICATES))
        self._kubectl("delete", "pod", _CERTIFICATES, "--wait=false")

    def apply(
        self,
        which: str = "base",
        *,
        components: Sequence[str] = (),
        patches: Sequence[dict[str, Any]] = (),
    ) -> None:
        """Apply a folder of ``daemonset/`` for this cluster; return once its pods are ready.

        ``components`` and ``patches`` are added to the kustomization, and what this version of
        Kubernetes needs.
        """
        folder = self.cluster.state.path / "kustomization"
        folder.mkdir(exist_ok=True)
        configuration = yaml.safe_load(_CONFIGURATION.read_text(encoding="utf-8"))
        generated = {"name": f"{EXTENDER}-configuration", "namespace": NAMESPACE}
        plugin = f"{PLUGIN}-in-mib.yaml"
        document = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": [os.path.relpath(DAEMONSET / which, folder), "runtimeclass.yaml"],
            "components": [
                os.path.relpath(DAEMONSET / "components" / each, folder)
                for each in (*components_for(self.cluster), *components)
            ],
            "configMapGenerator": [
                {**generated, "behavior": "replace", "files": ["extender.yaml"]}
            ],
            "patches": [
                {"target": {"kind": "DaemonSet", "name": PLUGIN}, "path": plugin},
                *_default_runtime(),
                *patches,
            ],
        }
        arguments = "/spec/template/spec/containers/0/args/0"
        in_mib = [{"op": "replace", "path": arguments, "value": "--memory-unit=MiB"}]
        _write(folder / plugin, in_mib)
        _write(folder / "extender.yaml", {**configuration, "memoryUnit": "MiB"})
        _write(folder / "runtimeclass.yaml", _RUNTIME_CLASS)
        _write(folder / "kustomization.yaml", document)
        self.cluster.kubectl("apply", "-k", str(folder))
        self.await_rollout()

    def await_rollout(self) -> None:
        """Return once every DaemonSet and Deployment is rolled out; DeadlineError."""
        kinds = "daemonset,deployment"
        for name in self._kubectl("get", kinds, "-o", "name").split():
            try:
                self._kubectl("rollout", "status", name, seconds=_SECONDS)
            except CommandError as problem:
                seen = self._kubectl("get", "pods", "-o", "wide")
                told = self._kubectl("get", "events", "--sort-by=.lastTimestamp")
                text = f"{name} is not ready: {problem}\n{seen}\n{told[-3000:]}"
                raise DeadlineError(text) from problem

    def plugin_address(self, node: str) -> tuple[str, int]:
        """Return where the plugin of a node serves its pages; CommandError if the node has none."""
        label = f"app.kubernetes.io/name={PLUGIN}"
        where = f"--field-selector=spec.nodeName={node}"
        path = "jsonpath={.items[0].status.podIP}"
        return self._kubectl("get", "pods", "-l", label, where, "-o", path), PLUGIN_PORT

    def _await_account(self) -> None:
        def missing() -> str | None:
            try:
                self._kubectl("get", "serviceaccount", "default")
            except CommandError as problem:
                return str(problem)
            return None

        wait_until(f"the default ServiceAccount of {NAMESPACE}", missing, seconds=20)

    def _kubectl(self, *words: str, stdin: str | None = None, seconds: float = 60) -> str:
        return self.cluster.kubectl("-n", NAMESPACE, *words, stdin=stdin, seconds=seconds)


def _default_runtime() -> list[dict[str, Any]]:
    """Return the patches of the component default-runtime without the plugin's RuntimeClass."""
    path = DAEMONSET / "components" / "default-runtime" / "kustomization.yaml"
    found = []
    for each in yaml.safe_load(path.read_text(encoding="utf-8"))["patches"]:
        changes = [op for op in yaml.safe_load(each["patch"]) if op["op"] == "replace"]
        found.append({**each, "patch": yaml.safe_dump(changes)})
    return found


def _write(path: Path, document: Any) -> None:
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
