"""The configuration of a node's containerd, CNI plugins and kubelet."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from localcluster.images import PAUSE
from localcluster.network import NetworkPlan
from localcluster.specs import Runtime
from localcluster.state import StateFolder
from localcluster.versions import DEFAULT, Version

CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
CARDS = "/run/nvml-standin"
"""Where the NVML stand-in looks for its state file, in nodes and containers."""
_MAX_PODS = 200
_JUDGES_CGROUPS = Version(31)  # the first kubelet that can refuse cgroup v1


KUBERNETES = "/etc/kubernetes"
MANIFESTS = f"{KUBERNETES}/manifests"


def containerd_config(
    *,
    binaries: Path,
    folder: Path,
    snapshotter: str,
    cdi: bool,
    version: Runtime = "containerd-2",
    handlers: Mapping[str, Path] | None = None,
    default_handler: str = "runc",
) -> str:
    """Return containerd's configuration for the node with these files in `folder`.

    What is two plugins in containerd 2 is one in containerd 1.7, with other option names.
    `handlers` are runtimes other than runc, with their programs; `default_handler` is for pods
    without a RuntimeClass.
    """
    old = version == "containerd-1.7"
    runtime = "io.containerd.grpc.v1.cri" if old else "io.containerd.cri.v1.runtime"
    if old:
        pause, plugins = f'sandbox_image = "{PAUSE}"', f'bin_dir = "{binaries}"'
        images, unpacked = "", f'snapshotter = "{snapshotter}"'
    else:
        pause, plugins, unpacked = "", f'bin_dirs = ["{binaries}"]', ""
        images = f"""\
[plugins."io.containerd.cri.v1.images"]
snapshotter = "{snapshotter}"

[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{PAUSE}"

[plugins."io.containerd.transfer.v1.local"]
unpack_config = [
  {{ platform = "linux", snapshotter = "{snapshotter}" }},
]
"""
    return f"""\
version = {2 if old else 3}
root = "/var/lib/containerd"
state = "/run/containerd"
# The opt plugin makes /opt/containerd on the host, the others are for other snapshotters.
disabled_plugins = [
  "io.containerd.internal.v1.opt",
  "io.containerd.snapshotter.v1.blockfile",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs",
  "io.containerd.snapshotter.v1.erofs",
  "io.containerd.tracing.processor.v1.otlp",
]

[grpc]
address = "{CONTAINERD_SOCKET}"

[plugins."io.containerd.nri.v1.nri"]
disable = true

{images}
[plugins."{runtime}"]
{pause}
enable_cdi = {"true" if cdi else "false"}
cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
# Machines without CAP_SYS_RESOURCE cannot lower a score; runc fails on trying.
restrict_oom_score_adj = true

[plugins."{runtime}".cni]
{plugins}
conf_dir = "{folder}/cni.d"

[plugins."{runtime}".containerd]
default_runtime_name = "{default_handler}"
{unpacked}

[plugins."{runtime}".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."{runtime}".containerd.runtimes.runc.options]
BinaryName = "{binaries}/runc"
SystemdCgroup = false

{"".join(_handler(runtime, name, program, folder) for name, program in (handlers or {}).items())}\
"""


def _handler(plugin: str, name: str, program: Path, folder: Path) -> str:
    return f"""\
[plugins."{plugin}".containerd.runtimes.{name}]
runtime_type = "io.containerd.runc.v2"
base_runtime_spec = "{folder}/nvidia-runtime.json"

[plugins."{plugin}".containerd.runtimes.{name}.options]
BinaryName = "{program}"
SystemdCgroup = false

"""


def nvidia_runtime_spec(default: str, *, cards: Path) -> str:
    """Return the base specification of containers of NVIDIA's runtimes, as JSON.

    It is `default` and the cards' state. `default` is containerd's own specification, as JSON.
    `cards` is the folder of the state file; a real card needs none. A pod's security context still
    applies.
    """
    document = json.loads(default)
    for key in ("apparmorProfile", "rlimits"):
        document["process"].pop(key, None)
    document["linux"].pop("seccomp", None)
    options = ["rbind", "ro", "nosuid", "nodev"]
    document["mounts"].append(
        {"destination": CARDS, "type": "bind", "source": str(cards), "options": options}
    )
    return json.dumps(document)


def cni_config(plan: NetworkPlan, index: int) -> str:
    """Return the CNI network of node `index`: routed point to point, no masquerading."""
    document = {
        "cniVersion": "1.0.0",
        "name": "localcluster",
        "plugins": [
            {
                "type": "ptp",
                "ipam": {
                    "type": "host-local",
                    "dataDir": "/var/lib/cni/networks",
                    "ranges": [[{"subnet": plan.pods(index)}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            }
        ],
    }
    return json.dumps(document, indent=2)


def kubelet_config(
    state: StateFolder,
    plan: NetworkPlan,
    *,
    cgroup: str,
    version: Version = DEFAULT,
    static_pods: bool = False,
    runtime: str = CONTAINERD_SOCKET,
) -> str:
    """Return the kubelet's configuration, with kubeadm's authentication and authorization.

    `runtime` is the socket of the node's container runtime. Intervals are shorter than the defaults
    (in parentheses), so that tests need not wait: node status every 2 s (10 s), pods every 10 s (60
    s).
    """
    document: dict[str, Any] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(state.pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        # Nothing serves names there, look-ups fail at once; without an address the kubelet writes
        # a warning event on every pod.
        "clusterDNS": [plan.host],
        "clusterDomain": "cluster.local",
        "containerRuntimeEndpoint": f"unix://{runtime}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroup,
        "failSwapOn": False,
        # The machine is shared: nothing is to be evicted for what others use of it.
        "enforceNodeAllocatable": [],
        "evictionHard": {
            "memory.available": "1Mi",
            "nodefs.available": "0%",
            "nodefs.inodesFree": "0%",
            "imagefs.available": "0%",
            "imagefs.inodesFree": "0%",
        },
        "imageGCHighThresholdPercent": 100,
        "localStorageCapacityIsolation": False,
        "maxPods": _MAX_PODS,
        "nodeStatusUpdateFrequency": "2s",
        "oomScoreAdj": 0,
        "registerNode": True,
        "resolvConf": "",
        "serializeImagePulls": False,
        "syncFrequency": "10s",
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
    }
    if version >= _JUDGES_CGROUPS:
        document["failCgroupV1"] = False
    if static_pods:
        document["staticPodPath"] = MANIFESTS
    return yaml.safe_dump(document, sort_keys=False)


def kubelet_arguments(state: StateFolder, plan: NetworkPlan, node: str, index: int) -> list[str]:
    """Return the kubelet's arguments."""
    return [
        f"--config={state.node(node) / 'kubelet.yaml'}",
        f"--kubeconfig={state.kubeconfigs / f'kubelet-{node}.kubeconfig'}",
        f"--hostname-override={node}",
        f"--node-ip={plan.node(index)}",
    ]


def snapshotter_for(folder: Path, mountinfo: str) -> str:
    """Return `overlayfs`, or `native` if `folder` is on an overlay, which cannot hold another."""
    best, kind = "", ""
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        place = before.split()[4]
        inside = str(folder) == place or str(folder).startswith(place.rstrip("/") + "/")
        if inside and len(place) >= len(best):
            best, kind = place, after.split()[0]
    return "native" if kind == "overlay" else "overlayfs"
