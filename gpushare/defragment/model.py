"""Define pods that may move, and plans of moves: values that never change (pure)."""

from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from gpushare.cards.model import Share
from gpushare.objects.model import Pod
from gpushare.objects.pod_requests import Requests
from gpushare.planning.shapes import Shape


class CardKey(NamedTuple):
    """Identifies a card: a UUID alone is not unique on nodes of Aliyun gpushare."""

    node: str
    uuid: str


class Place(NamedTuple):
    """``cards`` are UUIDs."""

    node: str
    cards: tuple[str, ...]

    @property
    def keys(self) -> frozenset[CardKey]:
        return frozenset([CardKey(self.node, uuid) for uuid in self.cards])


class Movable(msgspec.Struct, gc=False, frozen=True, eq=False):
    """A bound pod that may be evicted, because its controller creates another one like it.

    ``shape`` is that of the other one. ``requests`` is what the pod uses of its node.
    """

    pod: Pod
    shape: Shape
    share: Share
    requests: Requests

    @property
    def uid(self) -> str:
        return self.share.pod_uid

    @property
    def node(self) -> str:
        return self.share.node

    @property
    def place(self) -> Place:
        return Place(self.share.node, self.share.cards)

    @property
    def units(self) -> int:
        """Return its units of all cards."""
        return self.share.units * len(self.share.cards)


@dataclass(frozen=True, slots=True)
class Move:
    """A pod is evicted, and there is room for the one that replaces it ``to`` there.

    ``closed`` are cards that must take no new pods meanwhile: those of the pod, and those that
    earlier and later moves of the plan are to free.
    """

    movable: Movable
    to: Place
    closed: frozenset[CardKey]


@dataclass(frozen=True, slots=True)
class WantedPlace:
    """Where a Pending pod has room after the moves."""

    pod: Pod
    shape: Shape
    place: Place


@dataclass(frozen=True, slots=True)
class MovePlan:
    """``moves`` in an order in which each has room when it is its turn.

    ``freed`` are the cards that no pod uses after them, ``wanted`` the places of Pending pods.
    ``is_enough``: as many cards or pods as were asked for. ``gave_up``: the search ended early, so
    fewer moves might do, or more might be possible.
    """

    moves: tuple[Move, ...] = ()
    freed: tuple[CardKey, ...] = ()
    wanted: tuple[WantedPlace, ...] = ()
    is_enough: bool = False
    gave_up: bool = False
