"""Keeps what is free on every node of a trace, and checks each placement against it."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from bench.placement.trace import CARD, Trace, TraceNode, TracePod


@dataclass(frozen=True, slots=True)
class Place:
    """The number of a node, and the indexes of its cards."""

    node: int
    cards: tuple[int, ...] = ()


class Books:
    """``cpu``, ``memory`` and ``free`` (units by card) are what is left, by the node's number.

    ``changed`` has the node of every change, in their order.
    """

    def __init__(self, trace: Trace) -> None:
        self.nodes = trace.nodes
        self.cpu = [node.cpu for node in trace.nodes]
        self.memory = [node.memory for node in trace.nodes]
        self.free = [[CARD] * node.cards for node in trace.nodes]
        self.changed: list[int] = []
        self.used = 0

    def hosts(self, pod: TracePod) -> list[int]:
        """Return the nodes with enough CPU and memory, which is what kube-scheduler filters by."""
        cpu, memory = pod.cpu, pod.memory
        return [
            i
            for i, (c, m) in enumerate(zip(self.cpu, self.memory, strict=True))
            if c >= cpu and m >= memory
        ]

    def hosts_pod(self, pod: TracePod, node: int) -> bool:
        """Return whether a node has the CPU, the memory and the model that a pod requests."""
        return (
            self.cpu[node] >= pod.cpu
            and self.memory[node] >= pod.memory
            and allows(pod, self.nodes[node])
        )

    def put(self, pod: TracePod, place: Place) -> None:
        """Count a pod; raise ValueError if it is more than is free, or not what it requests."""
        node, free = place.node, self.free[place.node]
        if len(set(place.cards)) != pod.cards or not allows(pod, self.nodes[node]):
            raise ValueError(f"{pod} got {place} of {self.nodes[node]}")
        self._add(pod, place, 1)
        if self.cpu[node] < 0 or self.memory[node] < 0 or any(free[i] < 0 for i in place.cards):
            raise ValueError(f"{pod} does not fit into {place}")

    def remove(self, pod: TracePod, place: Place) -> None:
        self._add(pod, place, -1)

    def _add(self, pod: TracePod, place: Place, sign: int) -> None:
        node = place.node
        self.cpu[node] -= sign * pod.cpu
        self.memory[node] -= sign * pod.memory
        for i in place.cards:
            self.free[node][i] -= sign * pod.units
        self.used += sign * pod.size
        self.changed.append(node)


def allows(pod: TracePod, node: TraceNode) -> bool:
    return not pod.models or node.model in pod.models


class System(Protocol):
    """Something that places pods. It counts a pod itself once ``placed`` is called."""

    def place(self, pod: TracePod, uid: str, /) -> Place | None:
        """Return the place for a pod; None if it fits nowhere."""

    def placed(self, pod: TracePod, uid: str, place: Place, /) -> None:
        """Count a pod that is bound."""

    def removed(self, pod: TracePod, uid: str, place: Place, /) -> None:
        """Count a pod no longer."""


@dataclass(frozen=True, slots=True)
class Setup:
    """A trace, and what places its pods: ``gpus`` those with GPU, ``others`` the rest."""

    trace: Trace
    books: Books
    gpus: System
    others: System

    def bind(self, pod: TracePod, uid: str) -> Place | None:
        """Place a pod and count it; return None if it fits nowhere."""
        place = (self.gpus if pod.cards else self.others).place(pod, uid)
        if place is not None:
            self.books.put(pod, place)
            self.gpus.placed(pod, uid, place)
        return place

    def remove(self, pod: TracePod, uid: str, place: Place) -> None:
        self.books.remove(pod, place)
        self.gpus.removed(pod, uid, place)


def idle(books: Books, kinds: Iterable[tuple[TracePod, int]]) -> dict[str, float]:
    """Return where units stay idle, for the mix of pods ``kinds`` (pod, number), by cause.

    A unit is idle because of "cpu" or "memory" for a kind if the node has too little of it, of
    "model" if the kind does not allow it, of "remnants" if too little is free on that card or on
    too few cards. What a kind could use is "usable". The shares are averages over the kinds,
    weighted by their number, in units.
    """
    causes = dict.fromkeys(("cpu", "memory", "model", "remnants", "usable"), 0.0)
    weighed = [(pod, number) for pod, number in kinds if pod.cards]
    total = sum(number for _, number in weighed)
    for i, node in enumerate(books.nodes):
        free = books.free[i]
        there = sum(free)
        if not there:
            continue
        for pod, number in weighed:
            part = number / total
            fitting = [units for units in free if units >= pod.units]
            if not allows(pod, node):
                causes["model"] += part * there
            elif books.cpu[i] < pod.cpu:
                causes["cpu"] += part * there
            elif books.memory[i] < pod.memory:
                causes["memory"] += part * there
            elif len(fitting) < pod.cards:
                causes["remnants"] += part * there
            else:
                causes["usable"] += part * sum(fitting)
                causes["remnants"] += part * (there - sum(fitting))
    return causes
