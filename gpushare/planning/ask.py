"""Define what a planner is asked and what it answers: values that never change."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from gpushare.ledger.holds import Slot
from gpushare.objects.model import Pod
from gpushare.placement.reasons import Reason

MOST_ROOMS: Final = 5  # zones that an answer names

_NO_NODES: Final[Mapping[str, frozenset[str]]] = MappingProxyType({})
_NO_HINTS: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ZoneRole:
    """Gangs that use ``from_cards`` to ``to_cards`` GPUs in all may be placed in ``zone``.

    Without a role a zone is for all gangs. With several it is for those that any of them admits.
    """

    zone: str
    from_cards: int
    to_cards: int

    def admits(self, cards: int) -> bool:
        return self.from_cards <= cards <= self.to_cards


@dataclass(frozen=True, slots=True)
class Ask:
    """A gang, or a part of it, that needs slots.

    ``owner`` is the owner of its hold. What the hold keeps for pods in ``members``, or for no
    particular pod, does not count against them; its other slots and all reserves do count.

    ``members`` are the pods without a node, most important first, with and without GPU memory.
    At least ``least`` of them must get slots. If not all do, the more important ones come first.

    With a ``zone_key`` all slots are on nodes with one value of this label; nodes without the label
    or with an empty value are in no zone. ``zone`` is the value if it is fixed already, for example
    by members that are bound; then ``roles`` do not apply. ``cards`` is the number of GPUs of the
    whole gang, bound members included, for ``roles``.

    ``only`` restricts the nodes. ``avoid`` are nodes by pod uid that the pod must not get.
    ``cooling`` are nodes that take no GPU memory for a while. ``hints`` are nodes by pod uid: a
    member gets this node if it is eligible and has room, unless that would take away a plan.
    """

    owner: str
    members: tuple[Pod, ...]
    least: int
    zone_key: str = ""
    zone: str | None = None
    cards: int = 0
    roles: tuple[ZoneRole, ...] = ()
    only: frozenset[str] | None = None
    avoid: Mapping[str, frozenset[str]] = field(default_factory=lambda: _NO_NODES)
    cooling: frozenset[str] = frozenset()
    hints: Mapping[str, str] = field(default_factory=lambda: _NO_HINTS)


@dataclass(frozen=True, slots=True)
class Plan:
    """Slots that fit together now, pinned to pods, in the order of the members.

    There are at least ``least``. ``zone`` is the value of the zone label that their nodes share,
    empty without a zone key.
    """

    slots: tuple[Slot, ...]
    zone: str = ""


@dataclass(frozen=True, slots=True)
class ZoneRoom:
    """The number of the gang's members that would fit in a zone together.

    ``zone`` is empty if the gang may use all nodes. ``without`` of them request no GPU memory.
    """

    zone: str
    members: int
    without: int = 0

    @property
    def sharing(self) -> int:
        """Return how many of them request GPU memory."""
        return self.members - self.without


@dataclass(frozen=True, slots=True)
class NoPlan:
    """The gang does not fit.

    ``rooms`` are at most MOST_ROOMS zones, those with most room first. ``gave_up``: the search for
    a plan ended early, so there may be one.
    """

    reason: Reason
    rooms: tuple[ZoneRoom, ...] = ()
    gave_up: bool = False
