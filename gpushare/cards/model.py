"""Cards, the inventory of a node, and shares of cards: values that never change."""

from dataclasses import dataclass, field
from enum import StrEnum

from gpushare.cards.placement_policy import DEFAULT_POLICY, PlacementPolicy


class Health(StrEnum):
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"


@dataclass(frozen=True, slots=True)
class Card:
    """One physical GPU. ``index`` is its place in the node's inventory, ``minor`` the driver's.

    ``is_cordoned``: an operator wants nothing new on it.
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

    @property
    def is_healthy(self) -> bool:
        return self.health is Health.HEALTHY

    @property
    def takes_new(self) -> bool:
        return self.health is Health.HEALTHY and not self.is_cordoned


@dataclass(frozen=True, slots=True)
class Inventory:
    """A node's cards in index order.

    ``is_legacy``: read from the totals that the ecosystem's older plugin reports. Its cards have
    no UUID (``minor-0`` stands there) and IDX annotations mean the driver's minor number.
    ``injection`` and ``runtime_classes``: what opens cards to containers, and the RuntimeClasses
    under which NVIDIA's runtime runs them, an empty name for pods that name none. Older plugins
    state neither.
    ``is_leaving``: the plugin is about to end with no other to take over, so nothing new may come.
    """

    unit_mib: int
    cards: tuple[Card, ...]
    plugin: str = ""
    binding: str = ""
    is_legacy: bool = False
    injection: str = ""
    runtime_classes: frozenset[str] = frozenset()
    is_leaving: bool = False

    def by_uuid(self, uuid: str) -> Card | None:
        return next((card for card in self.cards if card.uuid == uuid), None)

    def by_minor(self, minor: int) -> Card | None:
        return next((card for card in self.cards if card.minor == minor), None)


class ContainerKind(StrEnum):
    APP = "app"
    INIT = "init"
    SIDECAR = "sidecar"


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """``units`` that one container asks for, over all its cards; 0 where it asks for none.

    ``sets_cards``: it sets NVIDIA_VISIBLE_DEVICES itself, which early binding cannot overrule.
    ``hides_cards``: it sets the variable so that NVIDIA's runtime opens no card to it.
    """

    name: str
    units: int
    kind: ContainerKind = ContainerKind.APP
    sets_cards: bool = False
    hides_cards: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """What a pod asks for: all containers on the same ``card_count`` cards, in equal parts.

    ``policy`` is empty where a request is read only for its amounts.

    ``exposes_cards``: a container that asks for no memory does not hide the cards from itself, so
    NVIDIA's runtime would open to it what its image asks for, which is most often all of them.

    ``units`` is Kubernetes' effective request of the whole pod, ``units_per_card`` its part of each
    card; both are computed once because filter compares them with thousands of nodes.
    """

    containers: tuple[ContainerRequest, ...]
    card_count: int = 1
    policy: PlacementPolicy = DEFAULT_POLICY
    runtime_class: str = ""
    units: int = field(init=False)
    units_per_card: int = field(init=False)
    sets_cards: bool = field(init=False)
    exposes_cards: bool = field(init=False)

    def __post_init__(self) -> None:
        units = _effective_units(self.containers)
        object.__setattr__(self, "units", units)
        object.__setattr__(self, "units_per_card", units // self.card_count)
        object.__setattr__(self, "sets_cards", any(c.sets_cards for c in self.containers))
        exposed = any(not (c.units or c.hides_cards) for c in self.containers)
        object.__setattr__(self, "exposes_cards", exposed)


def _effective_units(containers: tuple[ContainerRequest, ...]) -> int:
    """What runs at the same time, at most (KEP-753).

    Containers and sidecars add up; an init container runs beside the sidecars before it.
    """
    at_start = sidecars = 0
    for container in containers:
        if container.kind is ContainerKind.SIDECAR:
            sidecars += container.units
            at_start = max(at_start, sidecars)
        elif container.kind is ContainerKind.INIT:
            at_start = max(at_start, sidecars + container.units)
    apps = sum(c.units for c in containers if c.kind is ContainerKind.APP)
    return max(at_start, apps + sidecars)


@dataclass(frozen=True, slots=True)
class Share:
    """A granted request of a bound pod: ``units`` of each card in ``cards`` (UUIDs).

    Without cards it is *unplaced*: the pod runs on ``node`` and nobody can tell on which card, so
    its units are taken from every card there. ``why_unplaced`` then says what is missing.
    """

    pod_uid: str
    namespace: str
    name: str
    node: str
    units: int
    cards: tuple[str, ...] = ()
    why_unplaced: str = ""

    @property
    def pod_key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def is_unplaced(self) -> bool:
        return not self.cards
