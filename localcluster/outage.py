"""Ends a node as a power cut does, and starts it from what is on its disk."""

import shutil
import time
from collections.abc import Collection
from pathlib import Path

from localcluster import cgroups, namespaces, network, teardown
from localcluster.control import Control
from localcluster.errors import StateError
from localcluster.network import NetworkPlan
from localcluster.node import await_runtime
from localcluster.run import run
from localcluster.state import StateFolder
from localcluster.wait import patient

_EMPTY_SECONDS = 5.0


def power_off(state: StateFolder, index: int, node: str) -> list[str]:
    """Kill a node and remove what a machine forgets; return the processes that ran.

    This removes its namespaces with every mount, its cgroup, its link, and /run.
    """
    control = Control(state)
    ran = [each.name for each in control.status() if each.node == node and each.wanted]
    # The kubelet first: what it sees of the others' end it would write to its disk.
    for name in sorted(ran, key=lambda each: each != f"kubelet-{node}"):
        control.stop(name, grace=0)
    teardown.kill_all(state, node)
    group = f"{state.cgroup}/{node}"
    try:
        cgroups.remove(group)
    except OSError as problem:
        raise StateError(f"the cgroup {group} stays busy: {problem}; run `down`") from problem
    network.leave(state, index)
    for pin in namespaces.pins(state, node):
        run(["umount", "-n", "-l", pin])
    _empty(state.node(node) / "run")
    return ran


def power_on(
    state: StateFolder, plan: NetworkPlan, index: int, node: str, names: Collection[str]
) -> None:
    """Create the node again and start these of its processes: runtime, kubelet, programs."""
    control = Control(state)
    namespaces.create(state, node)
    network.join(state, plan, index, namespaces.pins(state, node)[1])
    cgroups.create(state.cgroup, node)
    runtimes = (f"containerd-{node}", f"crio-{node}")
    first = (*runtimes, f"kubelet-{node}")
    for name in [*first, *(each for each in names if each not in first)]:
        if name not in names:
            continue
        control.start(name)
        if name in runtimes:
            await_runtime(state, name, node)


def _empty(folder: Path) -> None:
    # A mount namespace ends a moment after its last process and pin.
    end = time.monotonic() + patient(_EMPTY_SECONDS)
    while True:
        try:
            shutil.rmtree(folder)
        except FileNotFoundError:
            pass
        except OSError as problem:
            if time.monotonic() > end:
                raise StateError(f"{folder} stays: {problem}; run `down`") from problem
            time.sleep(0.02)
        if not folder.exists():
            break
    (folder / "cdi").mkdir(parents=True)
