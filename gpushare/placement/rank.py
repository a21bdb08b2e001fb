"""Which of the nodes that fit is better (pure).

A node is judged by the cards that the pod would get there, as full as they would be with it; only
among equals by all its cards together. A sum over the node would call a node half full whether its
cards are all half full or half of them are empty, and large pods need the empty ones.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Final

from gpushare.cards.model import Request
from gpushare.cards.placement_policy import CardPolicy, NodePolicy
from gpushare.placement.card_choice import Room, pick

Shape = tuple[tuple[float, float], ...]  # utilisation in percent, rising, and score

_BINPACK: Final[Shape] = ((0, 0), (100, 10))
_SPREAD: Final[Shape] = ((0, 10), (100, 0))


@dataclass(frozen=True, slots=True)
class Policies:
    """What holds where a pod has no wish. ``shape`` is what ``NodePolicy.SHAPE`` means.

    Every policy for nodes is a function of utilisation; a shape without points means binpack.
    """

    node: NodePolicy = NodePolicy.BINPACK
    card: CardPolicy = CardPolicy.BINPACK
    shape: Shape = ()
    scores: Mapping[NodePolicy, Callable[[float], float]] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        shapes = {
            NodePolicy.BINPACK: _BINPACK,
            NodePolicy.SPREAD: _SPREAD,
            NodePolicy.SHAPE: self.shape or _BINPACK,
        }
        scores = {policy: function_of(shape) for policy, shape in shapes.items()}
        object.__setattr__(self, "scores", MappingProxyType(scores))


# Sorts best first. The first part is 1 where the node fits only while what was just ranked best
# elsewhere does not come; the last is the node's name, which no two nodes share.
Rank = tuple[int, float, float, str]


def rank(room: Room, request: Request, policies: Policies, name: str) -> Rank | None:
    """How good the node ``name`` is for a pod by what ``room`` it has; None if it has none."""
    policy, wanted, count = request.policy, request.units_per_card, request.card_count
    if policy.names_cards or (policy.card_policy or policies.card) is not CardPolicy.BINPACK:
        chosen = pick(room, request, policies.card)
        if chosen is None:
            return None
        free = sum(place.free for place in chosen)
        units = sum(place.card.units for place in chosen)
    else:
        # What ``pick`` takes, without its list of places: this is asked about every node.
        first = bisect_left(room.free, wanted)
        if len(room.free) - first < count:
            return None
        if count == 1:
            free, units = room.free[first], room.sizes[first]
        else:
            free = sum(room.free[first : first + count])
            units = sum(room.sizes[first : first + count])
    score = policies.scores[policy.node_policy or policies.node]
    more = wanted * count
    cards = score(100 * (units - free + more) / units)
    return (0, -cards, -score(100 * (room.used + more) / room.units), name)


def function_of(shape: Shape) -> Callable[[float], float]:
    """The piecewise linear function of utilisation through these points, constant outside them.

    As kube-scheduler's RequestedToCapacityRatio (noderesources/requested_to_capacity_ratio.go) has
    it, without its rounding to whole numbers: equal ranks would be decided by chance there.
    """
    (left, low), (right, high) = shape[0], shape[-1]
    if len(shape) == 2 and (left, right) == (0, 100):  # noqa: PLR2004 - a line over all there is
        slope = (high - low) / 100
        return lambda utilisation: low + slope * utilisation
    return partial(_between, shape)


def _between(shape: Shape, utilisation: float) -> float:
    left, low = shape[0]
    for right, high in shape:
        if utilisation <= right:
            if right == left:
                return high
            return low + (high - low) * (utilisation - left) / (right - left)
        left, low = right, high
    return low
