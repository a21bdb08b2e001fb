"""Pods that users make and delete, and that kubelets and plugins run, reject and end."""

import random
from typing import Any, Final

from gpushare.contract import (
    ANNOTATION_ASSIGN_TIME,
    ANNOTATION_ASSIGNED,
    ANNOTATION_ASSUME_TIME,
    ANNOTATION_CARDS,
    ANNOTATION_INDEX,
    ANNOTATION_RUNNING_ON,
    GATE_ADMISSION,
    LABEL_CARD_COUNT,
    RESOURCE_MEMORY,
)
from tests.simulation.loop import VirtualLoop
from tests.simulation.store import (
    NAMESPACE,
    Change,
    Object,
    Store,
    edited,
    gang_of,
    is_leaving,
    is_terminal,
    node_of,
    phase_of,
    server_time,
    uid_of,
)

NAMES: Final = 25  # few, so that a name soon means another pod
MOST_WAITING: Final = 8
UNITS: Final = (2, 3, 4, 5, 8, 12)
REJECTED: Final = 0.04  # of the pods, at admission
WITHOUT_GPU: Final = "web-"  # how the names of pods begin that request no GPU memory
MOST_WITHOUT_GPU: Final = 6
ORPHANED_SECONDS: Final = 8.0  # the pod garbage collector takes what is on no node


def is_without_gpu(pod: Object) -> bool:
    return str(pod["metadata"]["name"]).startswith(WITHOUT_GPU)


def is_done(pod: Object | None) -> bool:
    """Return whether the pod is a member of a gang, and has succeeded."""
    return pod is not None and bool(gang_of(pod)) and phase_of(pod) == "Succeeded"


class Pods:
    """``schedulers`` are the names that pods may ask for, ``priorities`` those that they have.

    With ``may_gate`` some pods begin with the extender's gate.
    """

    def __init__(
        self,
        loop: VirtualLoop,
        store: Store,
        rng: random.Random,
        schedulers: tuple[str, ...],
        priorities: tuple[int, ...],
        *,
        may_gate: bool,
    ) -> None:
        self._loop, self._store, self._rng, self._schedulers = loop, store, rng, schedulers
        self._priorities, self._may_gate = priorities, may_gate
        self._made = 0
        store.listeners.append(self._changed)

    def create(self) -> str:
        """Make a pod unless enough are Pending; return what was done."""
        name = f"pod-{self._rng.randrange(NAMES)}"
        waiting = sum(not (node_of(pod) or gang_of(pod)) for pod in self._store.pods.values())
        if name in self._store.pods or waiting >= MOST_WAITING:
            return "no pod is made"
        rng = self._rng
        pod = self.made(name, rng.choice(UNITS), rng.choice((1, 1, 1, 2)))
        if rng.random() < 0.1:
            # A user's preset annotations must have no effect.
            pod["metadata"]["annotations"] = {
                ANNOTATION_CARDS: "GPU-00",
                ANNOTATION_INDEX: "0",
                ANNOTATION_ASSUME_TIME: "1",
            }
        if self._may_gate and rng.random() < 0.5:
            pod["spec"]["schedulingGates"] = [{"name": GATE_ADMISSION}]
        self._store.put("pods", pod)
        return f"{name} is made"

    def create_bound(self, node: str) -> str:
        """Make a pod that names its node, and so has no known card, and one without GPU memory."""
        name = f"by-hand-{self._made}"
        pod = self.made(name, self._rng.choice((2, 5)), 1)
        pod["spec"]["nodeName"] = node
        self._store.put("pods", pod)
        self._create_without_gpu(node)
        return f"{name} is made on {node}"

    def _create_without_gpu(self, node: str) -> None:
        """Make a pod that runs until MOST_WITHOUT_GPU others have come."""
        there = [name for name in self._store.pods if name.startswith(WITHOUT_GPU)]
        for name in there[: max(0, len(there) + 1 - MOST_WITHOUT_GPU)]:
            self._store.remove("pods", name)
        name, amounts = f"{WITHOUT_GPU}{self._made}", {"cpu": str(1 + self._made % 3)}
        metadata = {"name": name, "namespace": NAMESPACE, "uid": name, "labels": {}}
        containers = [{"name": "main", "resources": {"limits": amounts}}]
        self._store.put(
            "pods",
            {
                "metadata": metadata | {"annotations": {}},
                "spec": {"schedulerName": "", "nodeName": node, "containers": containers},
                "status": {"phase": "Running"},
            },
        )

    def delete_one(self) -> str:
        """Delete a pod, with grace or without; return which."""
        pods = [
            pod for pod in self._store.pods.values() if not (is_without_gpu(pod) or is_done(pod))
        ]
        if not pods:
            return "no pod to delete"
        waiting = [pod for pod in pods if not (node_of(pod) or gang_of(pod))]
        pod = self._rng.choice(waiting if len(waiting) == MOST_WAITING else pods)
        return self.delete(pod)

    def delete(self, pod: Object) -> str:
        """Delete a pod, with grace or without; return which."""
        name = pod["metadata"]["name"]
        if not node_of(pod) or self._rng.random() < 0.15:
            self._store.remove("pods", name)
            return f"{name} is removed"
        self._update(uid_of(pod), deletionTimestamp="2027-01-15T08:00:00Z")
        return f"{name} is deleted"

    def remove_bound_by_hand(self) -> None:
        for name in [name for name in self._store.pods if name.startswith("by-hand")]:
            self._store.remove("pods", name)

    def end_all(self) -> None:
        """Let all bound pods end that belong to no gang."""
        for pod in list(self._store.pods.values()):
            if node_of(pod) and not (is_leaving(pod) or gang_of(pod) or is_without_gpu(pod)):
                self.delete(pod)

    def made(self, name: str, units: int, cards: int, priority: int | None = None) -> Object:
        """Return a new pod that requests GPU memory, to put into the store."""
        self._made += 1
        if priority is None:
            priority = self._rng.choice(self._priorities) if len(self._priorities) > 1 else 0
        amount = {RESOURCE_MEMORY: str(units)}
        labels = {LABEL_CARD_COUNT: str(cards)} if cards > 1 and units % cards == 0 else {}
        return {
            "metadata": {
                "name": name,
                "namespace": NAMESPACE,
                "uid": f"{name}.{self._made}",
                "creationTimestamp": server_time(self._loop.now).isoformat(),
                "labels": labels,
                "annotations": {},
            },
            "spec": {
                "schedulerName": self._rng.choice(self._schedulers),
                "priority": priority,
                "containers": [{"name": "main", "resources": {"limits": amount}}],
            },
            "status": {"phase": "Pending"},
        }

    def _changed(self, change: Change) -> None:
        after, before = change.after, change.before
        if change.kind == "nodes" and after is None and before is not None:
            self._loop.after(ORPHANED_SECONDS, self._collect, before["metadata"]["name"])
        if change.kind != "pods" or after is None or is_without_gpu(after):
            return
        rng, uid = self._rng, uid_of(after)
        if node_of(after) and (before is None or not node_of(before)):
            self._loop.after(rng.uniform(0.02, 2.0), self._admit, uid)
        if is_leaving(after) and (before is None or not is_leaving(before)):
            self._loop.after(rng.uniform(0.05, 6.0), self._finish, uid)

    def _admit(self, uid: str) -> None:
        pod = self._store.pod(uid)
        if pod is None or is_leaving(pod) or phase_of(pod) != "Pending":
            return
        if self._rng.random() < REJECTED:
            self._update(uid, phase="Failed", reason="UnexpectedAdmissionError")
            return
        cards = pod["metadata"]["annotations"].get(ANNOTATION_CARDS)
        if cards:
            assigned = {ANNOTATION_ASSIGNED: "true", ANNOTATION_ASSIGN_TIME: "1"}
            self._update(uid, annotations=assigned)
            running = ",".join(f'"{uuid}":1' for uuid in cards.split(","))
            self._update(uid, annotations={ANNOTATION_RUNNING_ON: f'{{"main":{{{running}}}}}'})
        running_now = [{"name": "main", "containerID": "c", "state": {"running": {}}}]
        self._update(uid, phase="Running", containerStatuses=running_now)
        if self._rng.random() < 0.7:
            self._loop.after(self._rng.uniform(0.5, 25.0), self._end, uid)

    def _end(self, uid: str) -> None:
        pod = self._store.pod(uid)
        if pod is None or is_terminal(pod):
            return
        self._update(uid, phase=self._rng.choice(("Succeeded", "Failed")))
        if is_done(self._store.pod(uid)):
            return  # its Job keeps it
        self._loop.after(self._rng.uniform(0.5, 20.0), self._finish, uid)

    def _finish(self, uid: str) -> None:
        pod = self._store.pod(uid)
        if pod is None:
            return
        if not is_terminal(pod) and self._rng.random() < 0.5:
            self._update(uid, phase="Succeeded")
        self._store.remove("pods", pod["metadata"]["name"])

    def _collect(self, node: str) -> None:
        if node not in self._store.nodes:
            for pod in [pod for pod in self._store.pods.values() if node_of(pod) == node]:
                self._store.remove("pods", pod["metadata"]["name"])

    def _update(
        self,
        uid: str,
        *,
        deletionTimestamp: str = "",  # noqa: N803 - Kubernetes' own word
        annotations: dict[str, str] | None = None,
        **status: Any,
    ) -> None:
        pod = self._store.pod(uid)
        if pod is None:
            return
        after = edited(pod)
        if deletionTimestamp:
            after["metadata"]["deletionTimestamp"] = deletionTimestamp
        after["metadata"]["annotations"] |= annotations or {}
        after["status"] |= status
        self._store.put("pods", after)
