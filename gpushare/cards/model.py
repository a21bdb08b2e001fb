"""Define cards, inventories, requests and shares: values that never change.

Python's garbage collector does not examine those of which there is one for each pod.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from typing import Final

import msgspec
from msgspec.structs import force_setattr

from gpushare.cards.placement_policy import DEFAULT_POLICY, PlacementPolicy


class Health(StrEnum):
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"


@dataclass(frozen=True, slots=True)
class Card:
    """One physical GPU. ``index`` is its position in the inventory, ``minor`` the driver's number.

    ``is_cordoned``: an operator allows no new pods on it. ``gone_since``: when the driver stopped
    showing it, in seconds since the Unix epoch; 0 if it is there.

    ``enforces``: what keeps containers to their share of its memory (contract.py), empty where the
    plugin does not state it; ``why_not_more``: why the driver does not, empty where it does.
    """

    index: int
    uuid: str
    units: int
    health: Health = Health.HEALTHY
    tag: str = ""
    minor: int = 0
    model: str = ""
    memory_mib: int = 0
    is_cordoned: bool = False
    gone_since: int = 0
    enforces: str = ""
    why_not_more: str = ""

    @property
    def is_healthy(self) -> bool:
        return self.health is Health.HEALTHY

    @property
    def takes_new(self) -> bool:
        return self.health is Health.HEALTHY and not self.is_cordoned


@dataclass(frozen=True, slots=True)
class Inventory:
    """A node's cards in index order.

    ``is_legacy``: read from the totals of Aliyun gpushare's device plugin. Its cards have no UUID
    (they get ``minor-0`` and so on), and IDX annotations contain the driver's minor number.
    ``injection``: what gives containers access to cards (contract.py). ``runtime_classes``: the
    RuntimeClasses that run NVIDIA's runtime, an empty name for pods without one. Older plugins
    state neither.
    ``is_leaving``: the plugin is about to end without a successor, so the node takes no new pods.
    ``next_index``: the least index of a new card; below it are indexes of cards that were
    forgotten.
    ``reserve``: what each card keeps unshared beside the driver's own, as set; empty for nothing.
    """

    unit_mib: int
    cards: tuple[Card, ...]
    plugin: str = ""
    binding: str = ""
    is_legacy: bool = False
    injection: str = ""
    runtime_classes: frozenset[str] = frozenset()
    is_leaving: bool = False
    next_index: int = 0
    reserve: str = ""

    def by_uuid(self, uuid: str) -> Card | None:
        return next((card for card in self.cards if card.uuid == uuid), None)

    def by_minor(self, minor: int) -> Card | None:
        return next((card for card in self.cards if card.minor == minor), None)


class ContainerKind(StrEnum):
    APP = "app"
    INIT = "init"
    SIDECAR = "sidecar"


class ContainerRequest(msgspec.Struct, gc=False, frozen=True):
    """The ``units`` that one container requests over all its cards; 0 if it requests none.

    ``sets_cards``: it sets NVIDIA_VISIBLE_DEVICES itself, which early binding cannot override.
    ``hides_cards``: it sets the variable so that NVIDIA's runtime gives it no card.
    ``sets_limits``: it sets a variable by which NVIDIA's hook reserves or limits a card's memory.
    """

    name: str
    units: int
    kind: ContainerKind = ContainerKind.APP
    sets_cards: bool = False
    hides_cards: bool = False
    sets_limits: bool = False


class Request(msgspec.Struct, gc=False, frozen=True):
    """A pod's request: all containers use the same ``card_count`` cards, in equal parts.

    ``policy`` is the default if only the amounts are read.

    ``exposes_cards``: a container that requests no GPU memory does not hide cards, so NVIDIA's
    runtime would give it those that its image names, which are usually all.

    ``cpu`` and ``memory`` are what the pod requests of its node, in thousandths; 0 where only the
    amounts of GPU memory are read. They rank nodes, and never decide whether the pod fits.

    ``units`` is Kubernetes' effective request of the whole pod, ``units_per_card`` its part of each
    card. Both are computed once, because filter compares them with thousands of nodes.
    """

    containers: tuple[ContainerRequest, ...]
    card_count: int = 1
    policy: PlacementPolicy = DEFAULT_POLICY
    runtime_class: str = ""
    cpu: int = 0
    memory: int = 0
    units: int = 0  # computed, as are all that follow
    units_per_card: int = 0
    sets_cards: bool = False
    sets_limits: bool = False
    exposes_cards: bool = False

    def __post_init__(self) -> None:
        units = effective_units(self.containers)
        force_setattr(self, "units", units)
        force_setattr(self, "units_per_card", units // self.card_count)
        force_setattr(self, "sets_cards", any(c.sets_cards for c in self.containers))
        force_setattr(self, "sets_limits", any(c.sets_limits for c in self.containers))
        exposed = any(not (c.units or c.hides_cards) for c in self.containers)
        force_setattr(self, "exposes_cards", exposed)

    @property
    def containers_with_units(self) -> int:
        """Return how many containers request GPU memory."""
        return sum(each.units > 0 for each in self.containers)

    @property
    def rank_key(self) -> tuple[int, int, int, bool, bool, bool, str, PlacementPolicy]:
        """Return what decides about nodes: requests with equal keys rank all nodes equally."""
        return (self.cpu, *self.fit_key)

    @property
    def fit_key(self) -> tuple[int, int, bool, bool, bool, str, PlacementPolicy]:
        """Return what decides about cards: requests with equal keys fit the same ones."""
        return (
            self.units_per_card,
            self.card_count,
            self.sets_cards,
            self.sets_limits,
            self.exposes_cards,
            self.runtime_class,
            self.policy,
        )


def effective_units(containers: Iterable[ContainerRequest]) -> int:
    """Return the most units that are in use at the same time (KEP-753).

    Containers and sidecars add up; an init container runs alongside the sidecars before it.
    """
    at_start = sidecars = apps = 0
    for container in containers:
        if container.kind is ContainerKind.APP:
            apps += container.units
        elif container.kind is ContainerKind.SIDECAR:
            sidecars += container.units
            at_start = max(at_start, sidecars)
        else:
            at_start = max(at_start, sidecars + container.units)
    return max(at_start, apps + sidecars)


class Share(msgspec.Struct, gc=False, frozen=True):
    """The share of a bound pod: ``units`` of each card in ``cards`` (UUIDs).

    A share without cards is *unplaced*: the pod is on ``node``, but its cards are unknown, and
    ``units`` are those of the whole pod. ``why_unplaced`` then states the reason. It may run on any
    card, so its units count on every card there, unless it ``starts_nowhere``: the device plugin
    refuses every start of the pod, so it uses no card. What it takes from the node's sum of units
    counts in any case, because the kubelet gives it that many devices.
    """

    pod_uid: str
    namespace: str
    name: str
    node: str
    units: int
    cards: tuple[str, ...] = ()
    why_unplaced: str = ""
    starts_nowhere: bool = False

    @property
    def pod_key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def is_unplaced(self) -> bool:
        return not self.cards

    @property
    def units_everywhere(self) -> int:
        """Return the units that count on every card of the node; 0 unless the share is unplaced."""
        return 0 if self.cards or self.starts_nowhere else self.units

    @property
    def units_in_all(self) -> int:
        """Return the units of all its cards together, which the node's sum of units lacks."""
        return self.units * (len(self.cards) or 1)

    def may_use(self, uuid: str) -> bool:
        """Return whether its units count on this card of its node."""
        return uuid in self.cards or self.units_everywhere > 0


# Seconds for which the driver must not have shown a card until it is dropped from the inventory.
FORGET_GONE_SECONDS: Final = 3 * 24 * 3600
BY_POD: Final = attrgetter("namespace", "name")  # sorts shares for people
