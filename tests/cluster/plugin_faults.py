"""Faults of a device plugin that runs from its image: updates, signals and a crash."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final

from localcluster import cgroups
from localcluster.gpushare import Gpushare
from localcluster.shipped import NAMESPACE, PLUGIN
from localcluster.wait import wait_until
from tests.fakes.crash import put_crash_module

_FOLDER: Final = "faults"
_CRASH: Final = "crash-now"
PATCH: Final = {
    "target": {"kind": "DaemonSet", "name": PLUGIN},
    "patch": """\
- op: add
  path: /spec/template/spec/containers/0/env/-
  value: {name: PYTHONPATH, value: /faults}
- op: add
  path: /spec/template/spec/containers/0/volumeMounts/-
  value: {name: faults, mountPath: /faults}
- op: add
  path: /spec/template/spec/volumes/-
  value: {name: faults, hostPath: {path: /run/faults, type: Directory}}
""",
}


class PluginFaults:
    """Cause faults; each but ``roll`` returns at once."""

    def __init__(self, gpushare: Gpushare, node: str) -> None:
        self._gpushare = gpushare
        self._node = node
        self._folder = gpushare.cluster.node_folder(node) / "run" / _FOLDER
        self.all: dict[str, Callable[[], None]] = {
            "rolling update": self.roll,
            "pod deleted": self.delete_pod,
            "SIGTERM": self.terminate,
            "crash": self.crash,
            "kill -9 of the worker": self.kill_worker,
            "kill -9 of process 1": self.kill_first,
        }

    def prepare(self) -> None:
        """Put the module on the node; the plugin that starts with PATCH loads it."""
        self._folder.mkdir(exist_ok=True)
        put_crash_module(self._folder, Path("/faults") / _CRASH)

    def roll(self) -> None:
        """Replace the plugin as an update does; return once the old pod is deleted."""
        old = self.pods()
        self._kubectl("rollout", "restart", f"daemonset/{PLUGIN}")
        self._kubectl("rollout", "status", f"daemonset/{PLUGIN}")

        def left() -> str | None:
            return ", ".join(set(old) & set(self.pods())) or None

        wait_until("the old pod to be gone", left, seconds=40)

    def delete_pod(self) -> None:
        self._kubectl("delete", "pod", *self.pods(), "--wait=false")

    def terminate(self) -> None:
        os.kill(self.processes()[0], signal.SIGTERM)

    def crash(self) -> None:
        (self._folder / _CRASH).touch()

    def kill_worker(self) -> None:
        """Kill the process that serves: the newest one."""
        os.kill(self.processes()[-1], signal.SIGKILL)

    def kill_first(self) -> None:
        os.kill(self.processes()[0], signal.SIGKILL)

    def pods(self) -> list[str]:
        """Return the plugin's pods on the node that are not being deleted."""
        return [
            each["metadata"]["name"]
            for each in self._found()
            if "deletionTimestamp" not in each["metadata"]
        ]

    def restarts(self) -> int:
        """Return how often the kubelet has started the plugin's container again."""
        return sum(
            status["restartCount"]
            for each in self._found()
            for status in each["status"].get("containerStatuses", [])
        )

    def processes(self) -> list[int]:
        """Return the plugin's processes on the node, oldest first; the first is the container's."""
        cluster = self._gpushare.cluster.state.cgroup
        return cgroups.running(cluster, "gpushare-deviceplugin", f"NODE_NAME={self._node}")

    def memory_mib(self) -> dict[str, float]:
        """Return the memory of the plugin's processes: resident, and with shared pages divided."""
        found = {}
        for place, process in enumerate(self.processes()):
            rollup = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
            sizes = {line.split()[0]: int(line.split()[1]) / 1024 for line in rollup[1:]}
            found |= {f"{key[:-1]} {place}": sizes[key] for key in ("Rss:", "Pss:")}
        return found

    def _found(self) -> list[dict]:
        words = ("-l", f"app.kubernetes.io/name={PLUGIN}", "-o", "json")
        found = json.loads(self._kubectl("get", "pods", *words))["items"]
        return [each for each in found if each["spec"].get("nodeName") == self._node]

    def _kubectl(self, *words: str) -> str:
        return self._gpushare.cluster.kubectl("-n", NAMESPACE, *words, seconds=130)
