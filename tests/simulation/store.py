"""The objects of the simulated API server, their versions and their history."""

from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from gpushare.contract import LABEL_GANG
from tests.simulation.machine import WALL_AT_START

NAMESPACE: Final = "default"  # of all pods

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Change:
    """One write: None before it was created, None after it was removed."""

    version: int
    kind: str
    before: Object | None
    after: Object | None


class Store:
    """Objects by kind and name; each write replaces an object, none is changed in place.

    ``listeners`` are called with every change, at once. Changes up to ``compacted`` are dropped.
    """

    def __init__(self) -> None:
        self.version = 1
        self.compacted = 0
        self.objects: dict[str, dict[str, Object]] = {
            kind: {} for kind in ("pods", "nodes", "leases", "namespaces", "poddisruptionbudgets")
        }
        self.listeners: list[Callable[[Change], None]] = []
        self._changes: dict[str, list[Change]] = {kind: [] for kind in self.objects}

    @property
    def pods(self) -> Mapping[str, Object]:
        return self.objects["pods"]

    @property
    def nodes(self) -> Mapping[str, Object]:
        return self.objects["nodes"]

    def pod(self, uid: str) -> Object | None:
        """Return the current pod with this uid."""
        return next((pod for pod in self.pods.values() if uid_of(pod) == uid), None)

    def put(self, kind: str, item: Object) -> Object:
        """Create or replace an object; return it with its new version."""
        name = item["metadata"]["name"]
        self.version += 1
        written = {**item, "metadata": {**item["metadata"], "resourceVersion": str(self.version)}}
        before = self.objects[kind].get(name)
        self.objects[kind][name] = written
        self._note(Change(self.version, kind, before, written))
        return written

    def remove(self, kind: str, name: str) -> None:
        self.version += 1
        before = self.objects[kind].pop(name)
        self._note(Change(self.version, kind, before, None))

    def since(self, kind: str, version: int) -> list[Change]:
        """Return the changes of one kind after ``version``, in order."""
        changes = self._changes[kind]
        return changes[bisect_right(changes, version, key=lambda change: change.version) :]

    def _note(self, change: Change) -> None:
        self._changes[change.kind].append(change)
        for listener in self.listeners:
            listener(change)


def edited(item: Object) -> Object:
    """Return a copy to change and put."""
    return msgspec.json.decode(msgspec.json.encode(item), type=Object)


def uid_of(item: Object) -> str:
    return str(item["metadata"]["uid"])


def node_of(pod: Object) -> str:
    return str(pod["spec"].get("nodeName") or "")


def phase_of(pod: Object) -> str:
    return str(pod["status"].get("phase") or "")


def is_terminal(pod: Object) -> bool:
    return phase_of(pod) in {"Succeeded", "Failed"}


def is_leaving(pod: Object) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def gates_of(pod: Object) -> list[str]:
    return [gate["name"] for gate in pod["spec"].get("schedulingGates") or ()]


def priority_of(pod: Object) -> int:
    return int(pod["spec"].get("priority") or 0)


def gang_of(pod: Object) -> str:
    """Return the name of the pod's gang; empty without one."""
    return str(pod["metadata"]["labels"].get(LABEL_GANG, ""))


def server_time(now: float) -> datetime:
    """Return what the API server's clock shows."""
    return datetime.fromtimestamp(int(WALL_AT_START + now), UTC)
