"""The cgroups of a cluster's containers, in v1, unified and hybrid layouts."""

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from localcluster.errors import HostError
from localcluster.wait import patient

_REMOVE_SECONDS = 5.0
_MOUNT = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Hierarchy:
    """One mounted cgroup hierarchy; `controllers` is empty for the unified one."""

    mount: Path
    controllers: tuple[str, ...]
    unified: bool


_CONTROLLERS = frozenset(
    {
        "blkio",
        "cpu",
        "cpuacct",
        "cpuset",
        "devices",
        "freezer",
        "hugetlb",
        "memory",
        "misc",
        "net_cls",
        "net_prio",
        "perf_event",
        "pids",
        "rdma",
    }
)


def parse_hierarchies(mounts: str) -> list[Hierarchy]:
    """Return the hierarchies that the text of /proc/mounts shows."""
    found = []
    for line in mounts.splitlines():
        _, place, kind, options = line.split()[:4]
        if kind == "cgroup":
            named = [each for each in options.split(",") if each.startswith("name=")]
            controllers = [each for each in options.split(",") if each in _CONTROLLERS]
            found.append(Hierarchy(Path(place), tuple(controllers + named), unified=False))
        elif kind == "cgroup2":
            found.append(Hierarchy(Path(place), (), unified=True))
    return found


def hierarchies() -> list[Hierarchy]:
    """Return the hierarchies mounted on this machine."""
    return parse_hierarchies(Path("/proc/mounts").read_text(encoding="utf-8"))


def unified() -> Path:
    """Return where this machine's unified hierarchy is mounted; raise HostError without one."""
    for each in hierarchies():
        if each.unified:
            return each.mount
    raise HostError(
        "no cgroup v2 hierarchy is mounted here, not even one without controllers; mount it:"
        " mount -t cgroup2 none /sys/fs/cgroup/unified"
    )


def is_unified() -> bool:
    """Return whether containers run on cgroup v2 here; raise HostError without any v2."""
    return unified() == _MOUNT


def as_unified(argv: Sequence[str]) -> list[str]:
    """Return the command that runs `argv` with the unified hierarchy at /sys/fs/cgroup.

    That is where a machine without cgroup v1 has it. There, this is `argv`; on others it runs in a
    mount namespace of its own. Raises HostError without such a hierarchy.
    """
    if is_unified():
        return list(argv)
    script = f'mount -n --bind "$0" {_MOUNT} && exec "$@"'
    unshare = ["unshare", "--mount", "--propagation", "slave"]
    return [*unshare, "sh", "-c", script, str(unified()), *argv]


def create(cluster: str, node: str) -> str:
    """Create a node's cgroup in every hierarchy that the kubelet uses; return its path.

    Raises HostError if a controller is not available.
    """
    mounted = hierarchies()
    legacy = [each for each in mounted if not each.unified]
    for hierarchy in legacy or mounted:
        top = hierarchy.mount / cluster
        own = top / node
        own.mkdir(parents=True, exist_ok=True)
        if "cpuset" in hierarchy.controllers:
            # An empty cpuset takes no process.
            for path in (top, own):
                for file in ("cpuset.cpus", "cpuset.mems"):
                    (path / file).write_text((path.parent / file).read_text())
        if hierarchy.unified:
            for path in (hierarchy.mount, top, own):
                _delegate(path)
    return f"/{cluster}/{node}"


def _delegate(path: Path) -> None:
    have = (path / "cgroup.controllers").read_text().split()
    try:
        (path / "cgroup.subtree_control").write_text(" ".join(f"+{each}" for each in have))
    except OSError as problem:
        text = (
            f"cgroup controllers cannot be given to children of {path}: {problem}; in a container,"
            " first move its processes into a cgroup of their own below the root"
        )
        raise HostError(text) from problem


def roots(cluster: str) -> list[Path]:
    """Return the cluster's topmost cgroups that exist now."""
    places = [each.mount / cluster for each in hierarchies()]
    return [each for each in dict.fromkeys(places) if each.is_dir()]


def processes(cluster: str) -> set[int]:
    """Return the ids of all processes in the cluster's cgroups."""
    found: set[int] = set()
    for root in roots(cluster):
        for folder, _, _ in os.walk(root):
            with contextlib.suppress(OSError):
                found.update(map(int, (Path(folder) / "cgroup.procs").read_text().split()))
    return found


def running(cluster: str, command: str, variable: str) -> list[int]:
    """Return the ids of a cluster's processes of a program, oldest first.

    Args:
        cluster: the name of the cluster's topmost cgroup.
        command: a part of their command line.
        variable: what their environment has, as ``NAME=value``.
    """
    found = []
    for pid in processes(cluster):
        process = Path("/proc", str(pid))
        with contextlib.suppress(OSError):  # it has ended
            is_its = variable.encode() in (process / "environ").read_bytes().split(b"\0")
            if is_its and command.encode() in (process / "cmdline").read_bytes():
                found.append((_start(process), pid))
    return [pid for _, pid in sorted(found)]


def _start(process: Path) -> int:
    """Return when a process began, in ticks since the machine's start (proc(5), field 22)."""
    return int((process / "stat").read_text().rpartition(")")[2].split()[19])


def remove(cluster: str) -> None:
    """Kill the processes left in the cluster's cgroups and remove these.

    Raises OSError if one stays busy.
    """
    end = time.monotonic() + patient(_REMOVE_SECONDS)
    while found := roots(cluster):
        for pid in processes(cluster):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for root in found:
            try:
                for folder, _, _ in os.walk(root, topdown=False):
                    Path(folder).rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                if time.monotonic() > end:
                    raise
        time.sleep(0.02)
