"""kube-scheduler as kubeadm installs it: a static pod on the control-plane node's network."""

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from localcluster.api import Api
from localcluster.errors import ApiError
from localcluster.nodefiles import KUBERNETES, MANIFESTS
from localcluster.state import StateFolder
from localcluster.versions import DEFAULT, Version
from localcluster.wait import wait_until

NAME: Final = "kube-scheduler"
PORT: Final = 10259
_KUBECONFIG: Final = f"{KUBERNETES}/scheduler.conf"
_CONFIGURATION: Final = f"{KUBERNETES}/kube-scheduler.yaml"
_EMBEDDED: Final = ("certificate-authority", "client-certificate", "client-key")
_SECONDS: Final = 90.0
_HAS_READYZ: Final = Version(31)


def scheduler_pod(
    image: str, *, version: Version = DEFAULT, flags: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the pod, with the labels, flags and files of kubeadm's, and `flags`.

    It lacks kubeadm's delays before the first probe, so that nobody has to wait for them.
    """
    files = {"kubeconfig": _KUBECONFIG, "configuration": _CONFIGURATION}
    alive, ready = ("/livez", "/readyz") if version >= _HAS_READYZ else ("/healthz", "/healthz")
    probe = {"host": "127.0.0.1", "port": PORT, "scheme": "HTTPS"}
    container = {
        "name": NAME,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": [
            NAME,
            f"--config={_CONFIGURATION}",
            f"--authentication-kubeconfig={_KUBECONFIG}",
            f"--authorization-kubeconfig={_KUBECONFIG}",
            "--bind-address=127.0.0.1",
            *flags,
        ],
        "resources": {"requests": {"cpu": "100m"}},
        "livenessProbe": {"httpGet": {**probe, "path": alive}, "timeoutSeconds": 15},
        "readinessProbe": {"httpGet": {**probe, "path": ready}, "periodSeconds": 1},
        "volumeMounts": [
            {"name": name, "mountPath": path, "readOnly": True} for name, path in files.items()
        ],
    }
    labels = {"component": NAME, "tier": "control-plane"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": NAME, "namespace": "kube-system", "labels": labels},
        "spec": {
            "hostNetwork": True,
            "priorityClassName": "system-node-critical",
            "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container],
            "volumes": [
                {"name": name, "hostPath": {"path": path, "type": "File"}}
                for name, path in files.items()
            ],
        },
    }


def write(
    state: StateFolder,
    node: str,
    image: str,
    *,
    version: Version = DEFAULT,
    flags: Sequence[str] = (),
) -> None:
    """Write the pod and its files to a node, with the cluster's kubeconfig and configuration."""
    kubeconfig = (state.kubeconfigs / f"{NAME}.kubeconfig").read_text(encoding="utf-8")
    configuration = yaml.safe_load((state.config / f"{NAME}.yaml").read_text(encoding="utf-8"))
    configuration["clientConnection"]["kubeconfig"] = _KUBECONFIG
    documents = {
        _KUBECONFIG: _embedded(yaml.safe_load(kubeconfig)),
        _CONFIGURATION: configuration,
        f"{MANIFESTS}/{NAME}.yaml": scheduler_pod(image, version=version, flags=flags),
    }
    for path, document in documents.items():
        file = state.node(node) / "kubernetes" / Path(path).relative_to(KUBERNETES)
        file.touch(mode=0o600)
        file.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")


def await_ready(api: Api, node: str) -> None:
    """Return once kube-scheduler on the node is ready; raise DeadlineError."""
    path = f"/api/v1/namespaces/kube-system/pods/{NAME}-{node}"

    def unready() -> str | None:
        try:
            status = api.get(path)["status"]
        except ApiError as problem:
            return str(problem)
        conditions = {each["type"]: each["status"] for each in status.get("conditions", [])}
        if conditions.get("Ready") == "True":
            return None
        return json.dumps(status.get("containerStatuses", status.get("phase")))

    wait_until(f"{NAME} on {node} to be ready", unready, seconds=_SECONDS)


def _embedded(kubeconfig: dict[str, Any]) -> dict[str, Any]:
    """Embed the files that a kubeconfig names, because a pod does not see them."""
    for entry in (kubeconfig["clusters"][0]["cluster"], kubeconfig["users"][0]["user"]):
        for key in _EMBEDDED:
            if key in entry:
                content = Path(entry.pop(key)).read_bytes()
                entry[f"{key}-data"] = base64.b64encode(content).decode()
    return kubeconfig
