"""Finds the pod of a process from its ``/proc/<pid>/cgroup`` (pure).

The kubelet gives each pod a control group whose name ends in ``pod<uid>``: with the driver cgroupfs
as it is, with systemd as a slice, dashes of the uid as underscores. Runtimes put containers below
it, and a reader in a control group namespace of its own sees ``..`` instead of the groups above
(kubernetes/pkg/kubelet/cm, pod_container_manager_linux.go and cgroup_manager_linux.go).
"""

import re
from typing import Final

# A UUID, or the hash of its manifest that a static pod has.
_POD: Final = re.compile(
    r"(?:^|[/-])pod"
    r"([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})"
    r"(?:\.slice)?(?=[/:]|$)"
)


def pod_uid(content: str) -> str | None:
    """Return the uid of the process's pod; None for a process outside of pods.

    For pods within pods it is the outer one, which is the pod that this node's kubelet knows.
    """
    for line in content.splitlines():
        _, _, rest = line.partition(":")
        _, _, path = rest.partition(":")
        if match := _POD.search(path):
            return match[1].replace("_", "-")
    return None
