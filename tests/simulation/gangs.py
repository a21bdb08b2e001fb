"""Gangs that users make and delete, each by a Job whose controller replaces its members."""

import random
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

from gpushare.contract import GATE_ADMISSION, LABEL_GANG, LABEL_GANG_MINIMUM
from tests.simulation.loop import VirtualLoop
from tests.simulation.pods import Pods
from tests.simulation.store import (
    Change,
    Object,
    Store,
    gang_of,
    is_leaving,
    is_terminal,
    node_of,
    phase_of,
    uid_of,
)

MOST_WAITING: Final = 2  # gangs with members that have no node
SIZES: Final = (2, 3, 3, 4, 5, 6)
UNITS: Final = (2, 3, 4, 5, 8)
TOGETHER_SECONDS: Final = 0.5  # in which the members of a new gang are created
REPLACED_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Gang:
    """``minimum`` of the members start together; ``shapes`` has each member's units and cards."""

    name: str
    minimum: int
    shapes: tuple[tuple[int, int], ...]
    is_gated: bool


class Gangs:
    """``by_name`` has all gangs ever made, ``deleted`` the names of those whose Job is deleted.

    With ``may_gate`` some members begin with the extender's gate. A member that is deleted or has
    failed gets a successor. Those that have succeeded stay until all have.
    """

    def __init__(
        self, loop: VirtualLoop, store: Store, rng: random.Random, pods: Pods, *, may_gate: bool
    ) -> None:
        self._loop, self._store, self._rng, self._pods = loop, store, rng, pods
        self._may_gate = may_gate
        self.by_name: dict[str, Gang] = {}
        self.deleted: set[str] = set()
        self._made = 0
        self._current: dict[str, dict[int, str]] = {}  # uids of the members by gang and index
        store.listeners.append(self._changed)

    def create(self) -> str:
        """Make a gang unless enough wait; return what was done."""
        waiting = {gang_of(pod) for pod in self._store.pods.values() if not node_of(pod)} - {""}
        if len(waiting) >= MOST_WAITING:
            return "no gang is made"
        rng, size = self._rng, self._rng.choice(SIZES)
        shape = rng.choice(UNITS), rng.choice((1, 1, 1, 2))
        others = (rng.choice(UNITS), 1) if rng.random() < 0.25 else shape
        shapes = tuple(shape if index % 2 else others for index in range(size))
        minimum = size - rng.choice((0, 0, 0, 1))
        gang = Gang(
            f"gang-{len(self.by_name)}", minimum, shapes, self._may_gate and rng.random() < 0.5
        )
        self.by_name[gang.name], self._current[gang.name] = gang, {}
        for index in range(size):
            self._loop.after(rng.uniform(0, TOGETHER_SECONDS), self._make, gang, index)
        return f"{gang.name} is made: {gang}"

    def delete_one(self) -> str:
        """Delete the Job of a gang; its members are deleted one after another."""
        names = [name for name in self.by_name if name not in self.deleted]
        if not names:
            return "no gang to delete"
        name = self._rng.choice(names)
        self._end(name)
        return f"{name} is deleted"

    def end_all(self, names: Collection[str]) -> None:
        """Let the Jobs of these gangs end."""
        for name in sorted(names):
            if name not in self.deleted:
                self._end(name)

    def _end(self, name: str) -> None:
        self.deleted.add(name)
        for pod in self._store.pods.values():
            if gang_of(pod) == name:
                self._loop.after(self._rng.uniform(0, 1.0), self._delete, uid_of(pod))

    def _delete(self, uid: str) -> None:
        pod = self._store.pod(uid)
        if pod is not None and is_terminal(pod):
            self._store.remove("pods", pod["metadata"]["name"])
        elif pod is not None:
            self._pods.delete(pod)

    def _make(self, gang: Gang, index: int) -> None:
        if gang.name in self.deleted:
            return
        self._made += 1
        made = self._pods.made(f"{gang.name}-{self._made}", *gang.shapes[index], priority=0)
        made["metadata"]["labels"] |= {LABEL_GANG: gang.name, LABEL_GANG_MINIMUM: str(gang.minimum)}
        owner: dict[str, Any] = {"controller": True, "kind": "Job", "name": gang.name}
        made["metadata"]["ownerReferences"] = [owner | {"uid": f"job-{gang.name}"}]
        if gang.is_gated:
            made["spec"]["schedulingGates"] = [{"name": GATE_ADMISSION}]
        self._current[gang.name][index] = uid_of(made)
        self._store.put("pods", made)

    def _changed(self, change: Change) -> None:
        pod = change.after or change.before
        if change.kind != "pods" or pod is None or not gang_of(pod):
            return
        gang, uid = self.by_name[gang_of(pod)], uid_of(pod)
        if gang.name in self.deleted:
            return
        current = self._current[gang.name]
        index = next((at for at, each in current.items() if each == uid), None)
        if index is not None and (change.after is None or _needs_successor(change.after)):
            current[index] = ""
            after = self._rng.uniform(0.05, REPLACED_SECONDS)
            self._loop.after(after, self._make, gang, index)
        elif len(self._done(gang)) == len(gang.shapes):
            self._end(gang.name)

    def _done(self, gang: Gang) -> list[Object]:
        pods = [pod for pod in self._store.pods.values() if gang_of(pod) == gang.name]
        return [pod for pod in pods if phase_of(pod) == "Succeeded"]


def _needs_successor(pod: Object) -> bool:
    return is_leaving(pod) or phase_of(pod) == "Failed"
