"""Judge given slots against the nodes as they are now (pure)."""

from collections.abc import Collection, Mapping, Sequence

from gpushare.ledger.accounts import NodeAccount
from gpushare.ledger.holds import Slot
from gpushare.placement.card_choice import is_wanted
from gpushare.placement.node_resources import take
from gpushare.placement.reasons import (
    COOLING,
    CORDONED,
    NO_ROOM,
    UNHEALTHY,
    UNWANTED,
    Reason,
)
from gpushare.placement.trial import World
from gpushare.planning import eligibility
from gpushare.planning.capacity import by_resources
from gpushare.planning.draft import Besides
from gpushare.planning.reasons import NO_RESOURCES, NODE_RULES, OTHER_REQUEST
from gpushare.planning.shapes import Shape


def by_node(slots: Collection[Slot]) -> dict[str, list[Slot]]:
    found: dict[str, list[Slot]] = {}
    for slot in slots:
        found.setdefault(slot.node, []).append(slot)
    return found


class Checker:
    """Judges slots, node by node: what one slot uses, those after it do not have.

    ``shapes`` are those of the pods, by uid; without a shape a slot is for another request.
    ``cooling`` are nodes that take no GPU memory now.
    """

    def __init__(
        self,
        world: World,
        besides: Besides,
        shapes: Mapping[str, Shape],
        cooling: Collection[str] = (),
    ) -> None:
        self._world, self._besides = world, besides
        self._shapes, self._cooling = shapes, cooling

    def why_not(self, name: str, slots: Sequence[Slot]) -> dict[str, Reason]:
        """Return why slots on a node cannot be used, by pod uid."""
        account, resources = self._besides.left_now(name)
        left = _Left(account, resources)
        found: dict[str, Reason] = {}
        rules: dict[Shape, Reason | None] = {}  # why the node takes no member of a shape
        for slot in slots:
            shape = self._shapes.get(slot.pod_uid)
            if shape is None or not _is_for(slot, shape):
                found[slot.pod_uid] = OTHER_REQUEST
                continue
            reason = None
            if shape.request is not None and name in self._cooling:
                reason = COOLING
            else:
                if shape not in rules:
                    rules[shape] = eligibility.why_not(self._world, name, shape, account)
                reason = rules[shape]
            reason = reason or left.take(slot, shape)
            if reason is not None:
                found[slot.pod_uid] = reason
        return found


class _Left:
    def __init__(self, account: NodeAccount | None, resources: Mapping[str, int] | None) -> None:
        self._resources = dict(resources) if resources is not None else None
        self._is_taken = False  # by a member that keeps others like it apart
        self._cards = {}
        if account is not None:
            self._cards = {each.card.uuid: (each.card, each.free) for each in account.cards}

    def take(self, slot: Slot, shape: Shape) -> Reason | None:
        """Take what a slot uses; return why that is not left."""
        resources, cards = self._resources, self._cards
        if shape.need.is_apart and self._is_taken:
            return NODE_RULES
        for uuid in slot.cards:
            card, free = cards.get(uuid, (None, 0))
            if card is None or shape.request is None:
                return NO_ROOM
            if not card.takes_new:
                return CORDONED if card.is_healthy else UNHEALTHY
            if not is_wanted(card, shape.request.policy):
                return UNWANTED
            if free < slot.units:
                return NO_ROOM
        if resources is None or not by_resources(resources, shape.amounts):
            return NO_RESOURCES
        for uuid in slot.cards:
            card, free = cards[uuid]
            cards[uuid] = card, free - slot.units
        self._is_taken |= shape.need.is_apart
        take(resources, shape.amounts)
        return None


def _is_for(slot: Slot, shape: Shape) -> bool:
    need = shape.need
    return slot.units == need.units and len(set(slot.cards)) == need.card_count
