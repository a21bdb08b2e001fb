"""The pod and container that a cgroup belongs to, by its path (pure).

The kubelet gives each pod a cgroup whose name ends in ``pod<uid>``: with the driver cgroupfs as it
is, with systemd as a slice, dashes of the uid as underscores (kubernetes/pkg/kubelet/cm,
pod_container_manager_linux.go and cgroup_manager_linux.go). Runtimes put containers below it, under
their ID: containerd with nothing before it or as ``cri-containerd-<id>.scope``, CRI-O as
``crio-<id>`` or ``crio-<id>.scope``, Docker as ``docker-<id>.scope``.
"""

import re
from dataclasses import dataclass
from typing import Final

# A UUID, or the hash of its manifest that a static pod has.
_POD: Final = re.compile(
    r"(?:^|[/-])pod"
    r"([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})"
    r"(?:\.slice)?(?=[/:]|$)"
)
_CONTAINER: Final = re.compile(
    r"[/:](?:(?:cri-containerd|crio|docker)[-:])?([0-9a-f]{64})(?:\.scope)?(?=/|$)"
)
_ID: Final = re.compile(r"[a-z-]+://([0-9a-f]{64})")
_FORMS: Final = ("{}", "cri-containerd-{}.scope", "crio-{}.scope", "crio-{}", "docker-{}.scope")


@dataclass(frozen=True, slots=True)
class Owner:
    """The pod and the container of a process; no container's ID where it is in none."""

    pod_uid: str
    container_id: str = ""


def owner_of(content: str) -> Owner | None:
    """Return the owner of a process from its ``/proc/<pid>/cgroup``; None for no pod.

    A reader in a cgroup namespace of its own sees ``..`` instead of the groups above. For pods
    within pods it is the outer one, which is the pod that this node's kubelet knows.
    """
    for line in content.splitlines():
        _, _, rest = line.partition(":")
        _, _, path = rest.partition(":")
        if pod := _POD.search(path):
            container = _CONTAINER.match(path, pod.end())
            return Owner(_uid(pod), container[1] if container else "")
    return None


def pod_of(name: str) -> str:
    """Return the uid of the pod whose cgroup has this name; empty for any other cgroup."""
    pod = _POD.search(name)
    return _uid(pod) if pod else ""


def bare_id(container_id: str | None) -> str:
    """Return the runtime's own ID from a pod's status, such as ``containerd://<id>``.

    It is empty if the status has no ID, or an ID of an unknown form.
    """
    found = _ID.fullmatch(container_id or "")
    return found[1] if found else ""


def names_of(container_id: str) -> list[str]:
    """Return the names that a container's cgroup may have in that of its pod."""
    return [form.format(container_id) for form in _FORMS]


def _uid(pod: re.Match[str]) -> str:
    return pod[1].replace("_", "-")
