"""Rank the nodes on which a pod fits (pure).

A node's rank is the utilization of the cards that the pod would get there, including the pod. A sum
over the node alone would not distinguish cards that are all half full from cards of which half are
empty, and large pods need empty cards. Ties are broken by what the pod costs other pods on the node
(``demand.scarcity``) for binpack once that is known, else by the utilization of all its cards.

For prices, the rank is what the pod wastes of these cards (``demand.prices``) and costs others, in
steps; ties are broken by the free units of the node. As long as nothing is known, it is binpack.

Where pods without GPU memory are going to fill nodes, costs come before ties, and a card is worth
as much as 10 points: for binpack what the pod costs others, for spread and shapes only the units
that it leaves without CPU or memory.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import floor
from operator import eq
from types import MappingProxyType
from typing import Final

from gpushare.cards.model import Card, Request
from gpushare.cards.placement_policy import CardPolicy, NodePolicy
from gpushare.demand.prices import Prices
from gpushare.demand.scarcity import (
    NOT_KNOWN,
    OF_BINPACK,
    OF_PRICES,
    OF_RISK,
    Scarcity,
    cost,
    stranding,
)
from gpushare.placement.card_choice import FreeCards, select

Shape = tuple[tuple[float, float], ...]  # (utilization in percent, score), in rising order

_STEP: Final = 0.02  # cards; smaller differences of prices are noise
_A_CARD: Final = 10  # points

_BINPACK: Final[Shape] = ((0, 0), (100, 10))
_SPREAD: Final[Shape] = ((0, 10), (100, 0))


@dataclass(frozen=True, slots=True)
class Policies:
    """The policies of pods that set none. ``shape`` is the meaning of ``NodePolicy.SHAPE``.

    Every policy for nodes is a function of utilization, prices until they are known; a shape
    without points means binpack.
    """

    node: NodePolicy = NodePolicy.BINPACK
    card: CardPolicy = CardPolicy.BINPACK
    shape: Shape = ()
    scores: Mapping[NodePolicy, Callable[[float], float]] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        shapes = {
            NodePolicy.BINPACK: _BINPACK,
            NodePolicy.PRICES: _BINPACK,
            NodePolicy.SPREAD: _SPREAD,
            NodePolicy.SHAPE: self.shape or _BINPACK,
        }
        scores = {policy: function_of(shape) for policy, shape in shapes.items()}
        object.__setattr__(self, "scores", MappingProxyType(scores))


# Sorts best first. The first part is 1 if the node fits only when expected binds to it do not
# happen; the second is a negated score, from 0 to 10 unless costs count; the last is the node's
# unique name.
Rank = tuple[int, float, float, str]


def rank(
    cards: FreeCards,
    request: Request,
    policies: Policies,
    name: str,
    *,
    scarcity: Scarcity = NOT_KNOWN,
) -> Rank | None:
    """Rank the node ``name`` for a pod by its free cards; None if the pod does not fit."""
    selected = _selected(cards, request, policies)
    if selected is None:
        return None
    each_free, sizes, of_model = selected
    policy, wanted = request.policy, request.units_per_card
    free, units = sum(each_free), sum(sizes)
    by = policy.node_policy or policies.node
    score = policies.scores[by]
    more = request.units
    is_priced = by is NodePolicy.PRICES and bool(scarcity.prices)
    is_at_risk = scarcity.level < 1
    node_free, card = cards.units - cards.used, cards.units / len(cards.free)
    if is_priced or (by is NodePolicy.BINPACK and scarcity is not NOT_KNOWN):
        costs = cost(
            scarcity,
            request,
            free=node_free,
            empty=cards.empty,
            taken=sum(map(eq, each_free, sizes)),
            card=card,
            left=cards.left,
            model=of_model.model,
            weights=OF_PRICES if is_priced else OF_RISK if is_at_risk else OF_BINPACK,
        )
        if is_priced:
            costs += _wasted(scarcity.prices, each_free, sizes, wanted)
            return (0, -_score_of(costs), node_free, name)
        tie = costs
    else:
        tie = -score(100 * (cards.used + more) / cards.units)
        costs = 0.0
        if is_at_risk:
            costs = stranding(scarcity, request, free=node_free, card=card, left=cards.left)
    points = score(100 * (units - free + more) / units)
    if is_at_risk:
        points -= _A_CARD * _stepped(costs)
    return (0, -points, tie, name)


def _selected(
    cards: FreeCards, request: Request, policies: Policies
) -> tuple[Sequence[int], Sequence[int], Card] | None:
    """Return free and all units of each card that the pod would get, and one of the cards."""
    policy, wanted, count = request.policy, request.units_per_card, request.card_count
    is_any = not policy.names_cards
    names_only_models = not (policy.only or policy.never or policy.needs_limit)
    if not is_any and cards.model is not None and names_only_models:
        if cards.model not in policy.models:
            return None
        is_any = True
    if not is_any or (policy.card_policy or policies.card) is not CardPolicy.BINPACK:
        chosen = select(cards, request, policies.card)
        if chosen is None:
            return None
        sizes = [place.card.units for place in chosen]
        return [place.free for place in chosen], sizes, chosen[0].card
    # The same cards as ``select``, by their amounts only: this runs for every node.
    first = bisect_left(cards.free, wanted)
    last = first + count
    if len(cards.free) < last:
        return None
    return cards.free[first:last], cards.sizes[first:last], cards.places[first].card


def _stepped(costs: float) -> float:
    return floor(costs / _STEP + 0.5) * _STEP


def _wasted(prices: Prices, free: Iterable[int], sizes: Iterable[int], wanted: int) -> float:
    """Return what a pod wastes of these cards, of each of which it takes the units ``wanted``."""
    gaps = zip(free, map(prices.get, sizes), strict=True)
    return sum(of_size.waste(gap, wanted) for gap, of_size in gaps if of_size is not None)


def _score_of(costs: float) -> float:
    """Return a score from 0 to 10 that falls with costs, in cards and in steps; 5 for none."""
    stepped = _stepped(costs)
    return 5 - 5 * stepped / (1 + abs(stepped))


def function_of(shape: Shape) -> Callable[[float], float]:
    """Return the piecewise linear function through these points, constant outside of them.

    This is kube-scheduler's RequestedToCapacityRatio
    (noderesources/requested_to_capacity_ratio.go) without its rounding to whole numbers, which
    would make different nodes equal.
    """
    (left, low), (right, high) = shape[0], shape[-1]
    if len(shape) == 2 and (left, right) == (0, 100):  # noqa: PLR2004 - a line over all there is
        slope = (high - low) / 100
        return lambda utilization: low + slope * utilization
    return partial(_between, shape)


def _between(shape: Shape, utilization: float) -> float:
    left, low = shape[0]
    for right, high in shape:
        if utilization <= right:
            if right == left:
                return high
            return low + (high - low) * (utilization - left) / (right - left)
        left, low = right, high
    return low
