"""A node's own mount and network namespaces, pinned by files, and how a command enters them."""

import ctypes
import os
import shlex
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from localcluster import driver
from localcluster.run import run
from localcluster.state import StateFolder

_SYSCTLS = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1000000,
    "kernel/keys/root_maxbytes": 25000000,
}

_PRELUDE = """\
own() {
  rm -f "$2" 2>/dev/null || true
  mkdir -p "$1" "$2"
  mount -n --bind "$1" "$2"
}
seeded() {
  for each in "$1"/io.containerd.snapshotter.v1.*/snapshots/*; do
    if [ -d "$each" ]; then mount -n -o bind,ro "$each" "$2${each#"$1"}"; fi
  done
}
driver() {
  mkdir -p "$1/driver"
  if [ -L "$1/$2" ]; then
    mount -n --rbind "$1/$2/" "$1/driver"
    mount -n -o remount,bind,ro "$1/driver"
  fi
}
farm() {
  mkdir -p "/run/localcluster$1"
  mount -n --bind "$1" "/run/localcluster$1"
  mount -n -t tmpfs -o mode=755 tmpfs "$1"
  for each in "/run/localcluster$1"/* "/run/localcluster$1"/.[!.]*; do
    if [ -L "$each" ]; then cp -P "$each" "$1/"
    elif [ -e "$each" ]; then ln -s "$each" "$1/"
    fi
  done
}
"""


def pins(state: StateFolder, node: str) -> tuple[Path, Path]:
    """Return the files that pin a node's mount and network namespaces."""
    return state.namespaces / f"{node}.mnt", state.namespaces / f"{node}.net"


def enter(state: StateFolder, node: str, argv: list[str]) -> list[str]:
    """Return the command that runs `argv` inside the node's namespaces, as the same process."""
    mount, network = pins(state, node)
    return ["nsenter", f"--mount={mount}", f"--net={network}", "--", *argv]


def connect(
    state: StateFolder, node: str, address: tuple[str, int], *, seconds: float
) -> socket.socket:
    """Connect to `address` inside the node's network namespace; raise OSError."""
    _, pin = pins(state, node)

    def inside() -> socket.socket:
        with pin.open() as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), 0):
                number = ctypes.get_errno()
                raise OSError(number, f"{pin} cannot be entered: {os.strerror(number)}")
        return socket.create_connection(address, timeout=seconds)

    # In a thread that ends here: a namespace is a thread's own, a socket stays where it was made.
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(inside).result()


def prepare(state: StateFolder) -> None:
    """Make the folder of the pins a mount of its own: only a private mount can pin namespaces."""
    folder = state.namespaces
    run(["mount", "-n", "--bind", folder, folder])
    run(["mount", "-n", "--make-private", folder])


def create(state: StateFolder, node: str) -> None:
    """Create the node's namespaces with its own mounts and kernel settings."""
    mount, network = pins(state, node)
    mount.touch()
    network.touch()
    unshare = ["unshare", f"--mount={mount}", f"--net={network}", "--propagation", "private"]
    run([*unshare, "sh", "-eu", "-c", mount_script(state, node)])


def mount_script(state: StateFolder, node: str) -> str:
    """Return the shell script that gives a new mount namespace the node's own folders.

    /etc and /var/lib become folders of links to the host's entries. So a mount point that the host
    lacks can be added, and the host does not see it. Kernel settings that a kubelet requires are
    replaced by files with these values, because the host's settings must not change.
    """
    folder = state.node(node)
    quoted = shlex.quote(str(folder))
    lines = [
        _PRELUDE,
        f"umount -n -l {shlex.quote(str(state.namespaces))}",
        f"driver {quoted} {shlex.quote(driver.LINK)}",
        f"own {quoted}/run /run",
        "farm /etc",
        "farm /var/lib",
        f"own {quoted}/cdi /etc/cdi",
        f"own {quoted}/log /var/log",
        f"own {quoted}/kubelet /var/lib/kubelet",
        f"own {quoted}/containerd /var/lib/containerd",
        f"seeded {quoted}/seed /var/lib/containerd",
        f"own {quoted}/cni /var/lib/cni",
        f"own {quoted}/kubernetes /etc/kubernetes",
        f"own {quoted}/gpushare /var/lib/gpushare",
        f"mkdir -p {quoted}/driver {driver.ROOT}",
        f"mount -n --rbind {quoted}/driver {driver.ROOT}",
        f"own {quoted}/nvml /run/nvml-standin",
        f"own {quoted}/toolkit /etc/nvidia-container-runtime",
        f"mkdir -p {quoted}/sysctl",
    ]
    for name, value in _SYSCTLS.items():
        file = f"{quoted}/sysctl/{name.replace('/', '.')}"
        lines += [
            f"echo {value} >{file}",
            f"if [ -e /proc/sys/{name} ]; then mount -n --bind {file} /proc/sys/{name}; fi",
        ]
    # As systemd leaves it: volumes that ask for mount propagation need a shared root.
    lines.append("mount -n --make-rshared /")
    return "\n".join(lines) + "\n"
