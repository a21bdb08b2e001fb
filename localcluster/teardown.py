"""Takes a cluster down, according to what is on the machine and not to any record.

There is one way down after an orderly run, a Ctrl-C, a crash and a kill -9 of the supervisor:
programs are asked to end, and everything else that belongs to the cluster is killed.
"""

import contextlib
import os
import signal
import time
from pathlib import Path

from localcluster import cgroups, network
from localcluster.control import Control
from localcluster.errors import LocalClusterError, StateError
from localcluster.run import run
from localcluster.state import MARKER, StateFolder, locked, state_root
from localcluster.wait import patient

_KILL_SECONDS = 10.0
_REMOVE_SECONDS = 5.0


def down(state: StateFolder) -> list[str]:
    """Remove everything that belongs to the cluster; return what was removed, for a person.

    Does nothing if nothing exists. Raises StateError with what is left if something cannot be
    removed; another call continues.
    """
    with locked(state_root() / f".{state.name}.lock"):
        return remove(state)


def remove(state: StateFolder) -> list[str]:
    """Do the same as `down` for a caller that holds the cluster's lock."""
    if state.control_socket.exists():
        with contextlib.suppress(LocalClusterError):
            Control(state).shutdown()
    removed = []
    if count := kill_all(state):
        removed.append(f"{count} processes")
    if groups := cgroups.roots(state.cgroup):
        try:
            cgroups.remove(state.cgroup)
        except OSError as problem:
            raise StateError(f"a cgroup stays busy: {problem}; run `down` again") from problem
        removed.append(f"{len(groups)} cgroups")
    if links := network.links(state):
        network.remove_links(state)
        removed.append(f"{len(links)} interfaces")
    if mounts := mounts_below(state.path):
        for place in reversed(mounts):
            # -n: or umount leaves a folder of its own in /run.
            run(["umount", "-n", "-l", place])
        removed.append(f"{len(mounts)} mounts")
    if state.path.exists():
        _remove_folder(state)
        removed.append(str(state.path))
    return removed


def owned_processes(state: StateFolder, node: str = "") -> set[int]:
    """Return the ids of the cluster's processes, or only of those inside `node`.

    They are found by their cgroup (containers), by their mount namespace (processes that entered a
    node) and, for the whole cluster, by the marker in their environment (components, programs,
    shims).
    """
    marker = b"" if node else f"{MARKER}={state.path}".encode()
    namespaces = _pinned(state, node)
    found = cgroups.processes(f"{state.cgroup}/{node}" if node else state.cgroup)
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            marked = marker and marker in (folder / "environ").read_bytes().split(b"\0")
            if marked or (folder / "ns/mnt").stat().st_ino in namespaces:
                found.add(int(folder.name))
    return found


def _pinned(state: StateFolder, node: str) -> set[int]:
    found = set()
    for place in mounts_below(state.namespaces):
        if Path(place).name == f"{node}.mnt" if node else place.endswith(".mnt"):
            with contextlib.suppress(OSError):
                found.add(Path(place).stat().st_ino)
    return found


def kill_all(state: StateFolder, node: str = "") -> int:
    """Kill the cluster's processes, or those inside `node`; return how many were killed.

    Raises StateError if one does not end.
    """
    killed: set[int] = set()
    end = time.monotonic() + patient(_KILL_SECONDS)
    while alive := {pid for pid in owned_processes(state, node) if not _zombie(pid)}:
        if time.monotonic() > end:
            text = f"processes {sorted(alive)} do not die; look at them, run `down` again"
            raise StateError(text)
        for pid in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed |= alive
        time.sleep(0.02)
    return len(killed)


def _zombie(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True
    return text.rpartition(")")[2].split()[0] in "ZX"


def mounts_below(folder: Path) -> list[str]:
    """Return the mount points at and below `folder`, parents first."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        place = line.split()[4].encode().decode("unicode_escape")
        if place == str(folder) or place.startswith(f"{folder}/"):
            found.append(place)
    return found


def _remove_folder(state: StateFolder) -> None:
    # A mount namespace ends a moment after its last process and pin; until then a folder in it
    # may still be busy.
    end = time.monotonic() + patient(_REMOVE_SECONDS)
    while True:
        try:
            state.remove()
        except FileNotFoundError:
            pass
        except OSError as problem:
            if time.monotonic() > end:
                raise StateError(f"{state.path} stays: {problem}; run `down` again") from problem
            time.sleep(0.02)
        if not state.path.exists():
            return
