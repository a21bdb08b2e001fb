"""Say what a pod takes from others on a node besides GPU memory, given what pods request (pure).

Three things become scarce before GPU memory does:

* CPU and memory of the node. Free GPU memory is *stranded* beyond what the rest of the node's CPU
  or memory can serve, at what pods request with each unit on average. CPU and memory that pods
  without GPU memory are going to take do not serve it (``demand.other_pods``).
* Nodes with enough entirely free cards, and CPU, for a pod of several cards.
* Cards of a model that other pods must have.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Final, NamedTuple

from gpushare.cards.model import Request
from gpushare.demand.mix import Kind, Mix
from gpushare.demand.prices import Prices

# All weights are in cards. They were chosen on the public trace openb, for pods that only come as
# well as for pods that come and go (docs/dev/performance.md).
_HOST: Final = 0.5  # for each card of a pod that would have no node left
_MODEL: Final = 3.0  # for a card of a model that is all needed
_QUARTER: Final = 250  # of a core, in thousandths
_UNKNOWN: Final = 1000.0  # more than a pod can cost where all is known
_WHOLE: Final = 0.9  # of a node's CPU: the rest is for the pods of DaemonSets
_MOST_TIERS: Final = 32
_STEPS: Final = 2.0  # a value of hosts is a power of this, so that it seldom changes


class Weights(NamedTuple):
    """``tight`` is for a node whose cards and CPU are all free, ``hosts`` a factor."""

    tight: float
    hosts: float


OF_BINPACK: Final = Weights(0.25, 1.0)
OF_PRICES: Final = Weights(0.1, 0.4)  # what is wasted of cards leaves less to decide
OF_RISK: Final = Weights(0.1, 1.0)  # where nodes fill up with pods without GPU memory
Hosts = tuple[tuple[Sequence[int], Sequence[float]], ...]


class Left(NamedTuple):
    """The CPU and memory of a node, in thousandths: what is free, and what pods can use in all.

    The latter are at least 1. ``takes_any``: no taint keeps pods off that do not tolerate it.
    """

    cpu: int
    memory: int
    all_cpu: int
    all_memory: int
    takes_any: bool = True

    def part(self, cpu: float, memory: float) -> float:
        """Return which part of the CPU is so much, or of the memory if that is less."""
        by_cpu, by_memory = cpu / self.all_cpu, memory / self.all_memory
        return min(by_memory, by_cpu)


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the cluster has: units by model, and the most units, CPU and memory of any one node.

    ``card`` are the units of its smallest card, ``shapes`` the numbers of cards of its nodes, two
    or more, with their CPU, rounded down by ``of_shape``.
    """

    units: Mapping[str, int] = field(default_factory=dict)
    shapes: frozenset[tuple[int, int]] = frozenset()
    card: int = 1
    most_units: int = 1
    most_cpu: int = 1
    most_memory: int = 1

    def hosted(self, mix: Mix) -> list[tuple[Kind, float]]:
        """Return the kinds of pods that a node may ever host: others say nothing about demand."""
        return [
            (kind, count)
            for kind, count in mix
            if 0 < kind.units * kind.cards <= self.most_units
            and kind.cpu <= self.most_cpu
            and kind.memory <= self.most_memory
        ]


def of_shape(cpu: int) -> int:
    """Return CPU rounded down to two significant bits, so that alike nodes have the same shape."""
    dropped = max(0, (cpu // _QUARTER).bit_length() - 2)
    return (cpu // _QUARTER >> dropped << dropped) * _QUARTER


@dataclass(frozen=True, slots=True)
class Tier:
    """Pods of several cards: ``wanted`` of them are expected to run at the same time."""

    cards: int
    cpu: int
    wanted: float


@dataclass(frozen=True, slots=True)
class Scarcity:
    """``cpu`` and ``memory`` are what pods request with each unit; 0 if that is not known.

    ``hosts``: by the number of entirely free cards of a node, the amounts of CPU in rising order,
    and what such a node is worth. ``models``: what a unit of a model is worth, in units.
    ``prices`` are of gaps in cards. ``level`` is the part of a node that pods without GPU memory
    leave free of it; 1.0 if none come.
    """

    cpu: float = 0.0
    memory: float = 0.0
    capacity: Capacity = field(default_factory=Capacity)
    tiers: tuple[Tier, ...] = ()
    hosts: Hosts = ()
    models: Mapping[str, float] = field(default_factory=dict)
    prices: Prices = field(default_factory=dict)
    level: float = 1.0

    def stranded(self, free: float, cpu: float, memory: float, of: Left) -> float:
        """Return the units of ``free`` that pods cannot use for lack of CPU or memory.

        So much CPU and memory is free of the node ``of``.
        """
        if not self.cpu:
            return 0.0
        if self.level < 1 and of.takes_any:
            taken = of.part(cpu, memory) - self.level
            if taken > 0:
                cpu, memory = cpu - taken * of.all_cpu, memory - taken * of.all_memory
        served = cpu / self.cpu
        if self.memory:
            served = min(served, memory / self.memory)
        return max(0.0, free - served)

    def host(self, empty: int, cpu: int) -> float:
        """Return what a node with ``empty`` entirely free cards is worth to large pods."""
        if not self.hosts or empty < 2:  # noqa: PLR2004 - cards of a pod that needs a whole node
            return 0.0
        amounts, values = self.hosts[min(empty, len(self.hosts) - 1)]
        at = bisect_right(amounts, cpu)
        return values[at - 1] if at else 0.0

    def with_hosts(
        self, nodes: Iterable[tuple[int, int]], room: float = 1.0
    ) -> Generator[None, None, "Scarcity"]:
        """Return the same for the present ``nodes``, in short steps.

        They are given by their entirely free cards and their free CPU. ``room`` is the part of the
        pods to be expected for which they are kept.
        """
        if not self.tiers:
            return self
        counted = Counter(node for node in nodes if node[0] > 1)
        values = []
        for tier in self.tiers:
            yield
            hosts = sum(
                n for (empty, cpu), n in counted.items() if empty >= tier.cards and cpu >= tier.cpu
            )
            wanted = sum(
                each.wanted
                for each in self.tiers
                if each.cards >= tier.cards and each.cpu >= tier.cpu
            )
            much = min(1.0, room * wanted / max(1, hosts))
            values.append((tier, _rounded(_HOST * tier.cards * much)))
        hosts_now = tuple(
            _rising((tier.cpu, value) for tier, value in values if tier.cards <= empty)
            for empty in range(max(tier.cards for tier in self.tiers) + 1)
        )
        if hosts_now == self.hosts:
            return self
        return replace(self, hosts=hosts_now)


NOT_KNOWN: Final = Scarcity()


def scarcity_of(kinds: Collection[tuple[Kind, float]], capacity: Capacity) -> Scarcity:
    """Return what is scarce for pods of these kinds, ``hosted`` ones, without hosts and prices."""
    units = sum(count * kind.units * kind.cards for kind, count in kinds)
    if not units:
        return Scarcity(capacity=capacity)
    running = sum(capacity.units.values()) / units  # of each pod that was counted
    tiers = [
        Tier(kind.cards, kind.cpu, count * running)
        for kind, count in kinds
        if kind.cards > 1 and kind.units * 2 > capacity.card
    ]
    # One pod that needs a whole node may come at any time, also if none has come yet.
    tiers += (Tier(cards, int(cpu * _WHOLE), running) for cards, cpu in capacity.shapes)
    largest = sorted(tiers, key=lambda tier: (-tier.cards * tier.wanted, tier.cards, tier.cpu))
    return Scarcity(
        cpu=sum(count * kind.cpu for kind, count in kinds) / units,
        memory=sum(count * kind.memory for kind, count in kinds) / units,
        capacity=capacity,
        tiers=tuple(largest[:_MOST_TIERS]),
        models=_models(kinds, units, capacity.units),
    )


def _models(
    kinds: Iterable[tuple[Kind, float]], units: float, supply: Mapping[str, int]
) -> dict[str, float]:
    """Return what part of each model is needed by pods that name it, times its weight."""
    every = sum(supply.values())
    needed: dict[str, float] = {}
    for kind, count in kinds:
        usable = [model for model in kind.models if supply.get(model)]
        there = sum(supply[model] for model in usable)
        for model in usable:
            part = count * kind.units * kind.cards / units
            here = part * every * supply[model] / there
            needed[model] = needed.get(model, 0.0) + here
    return {model: _MODEL * min(1.0, needed[model] / supply[model]) for model in needed}


def stranding(
    scarcity: Scarcity, request: Request, *, free: int, card: float, left: Left | None
) -> float:
    """Return how much more of the node's free units is stranded with the pod, in cards.

    The arguments are those of ``cost``. If ``left`` is not known, the node comes after others.
    """
    if left is None:
        return _UNKNOWN
    if not scarcity.cpu:
        return 0.0
    cpu_left = left.cpu - request.cpu
    memory_left = left.memory - request.cpu * scarcity.memory / scarcity.cpu
    after = scarcity.stranded(free - request.units, cpu_left, memory_left, left)
    return (after - scarcity.stranded(free, left.cpu, left.memory, left)) / card


def cost(
    scarcity: Scarcity, request: Request, *, free: int, empty: int, taken: int, card: float,
    left: Left | None, model: str, weights: Weights = OF_BINPACK,
) -> float:  # fmt: skip
    """Return what a pod costs others on a node, in cards: the node with the least is the best.

    The node has ``free`` units on cards of ``card`` units on average, ``empty`` of them entirely
    free, of which the pod uses ``taken``, and ``left`` besides. The pod's memory is taken in
    proportion to its CPU, so that pods that differ only in memory are equal.
    """
    units, asked, capacity = request.units, request.cpu, scarcity.capacity
    found = scarcity.models.get(model, 0.0) * units / card
    found += weights.tight * (free - units) / capacity.most_units
    found += stranding(scarcity, request, free=free, card=card, left=left)
    if left is None:
        return found
    if scarcity.hosts and empty > 1:
        lost = scarcity.host(empty, left.cpu) - scarcity.host(empty - taken, left.cpu - asked)
        found += weights.hosts * lost
    return found + weights.tight * (left.cpu - asked) / capacity.most_cpu


def _rounded(value: float) -> float:
    """Return the next higher power of _STEPS."""
    step = 2.0**-10
    while step < value:
        step *= _STEPS
    return step


def _rising(values: Iterable[tuple[int, float]]) -> tuple[Sequence[int], Sequence[float]]:
    ordered = sorted(values)
    return [cpu for cpu, _ in ordered], list(accumulate((value for _, value in ordered), max))
