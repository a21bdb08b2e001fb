"""Judge one node for one pod: its rank, or why it is rejected (pure).

The extender's decisions, explain and the simulator use it.
"""

from collections.abc import Callable, Hashable, Mapping
from functools import lru_cache
from typing import Final

import msgspec
from msgspec.structs import replace

from gpushare.annotations import inventory, pod_annotations
from gpushare.cards.model import Inventory, Request
from gpushare.cards.placement_policy import NodePolicy
from gpushare.contract import ANNOTATION_NODE_POLICY, EARLY_BINDING
from gpushare.demand.scarcity import NOT_KNOWN, Left, Scarcity
from gpushare.errors import RecordError, RequestError
from gpushare.ledger.accounts import NodeAccount
from gpushare.objects.model import Node, Pod
from gpushare.objects.pod_requests import requests_of
from gpushare.placement import card_choice
from gpushare.placement.card_choice import NOTHING, FreeCards
from gpushare.placement.node_resources import limited
from gpushare.placement.rank import Policies, Rank, rank
from gpushare.placement.reasons import LEAVING, NO_CARDS, UNREADABLE, UNREADABLE_CORDON, Reason

Verdict = Rank | Reason

_MOST_STATES: Final = 8192  # of the nodes that were looked at last


class Look(msgspec.Struct, gc=False, frozen=True):
    """The properties of a node that are the same for all requests.

    ``closed`` is why it takes no pods; else ``cards`` is set, without the units that are expected
    to be used (``is_less`` if there are any). ``is_plain``: the node's setup serves every pod.
    ``state`` is the same object only for nodes that have equal verdicts for every request that
    names no UUIDs, apart from the node's name.
    """

    closed: Reason | None
    cards: FreeCards | None = None
    is_less: bool = False
    is_plain: bool = False
    state: object = None


def look(
    account: NodeAccount | None,
    closed: Reason | None,
    unit_mib: int,
    expected: Mapping[str, int] = NOTHING,
    left: Left | None = None,
) -> Look:
    """Return a node's look; ``closed`` is why it takes no pods, the rest is as in FreeCards."""
    if closed is not None or account is None:
        return Look(closed or NO_CARDS)
    inventory = account.inventory
    is_plain = (
        inventory.unit_mib == unit_mib
        and inventory.binding != EARLY_BINDING
        and not inventory.injection
    )
    cards, is_less = FreeCards(account, expected, left), bool(expected)
    return Look(None, cards, is_less, is_plain, _state_of(cards, is_less=is_less))


def _state_of(cards: FreeCards, *, is_less: bool) -> object:
    """Return the ``state`` of Look: everything that ``decide`` reads, except names and UUIDs."""
    inventory = cards.account.inventory
    return _object_of(
        (
            inventory.unit_mib,
            inventory.binding,
            inventory.injection,
            inventory.runtime_classes,
            cards.left,
            tuple([(place.free, place.number) for place in cards.places]) if is_less else None,
            *[
                (
                    each.free,
                    card.index,
                    card.units,
                    card.model,
                    card.health,
                    card.is_cordoned,
                    card.enforces,
                )
                for each in cards.account.cards
                for card in (each.card,)
            ],
        )
    )


@lru_cache(_MOST_STATES)
def _object_of(_state: Hashable) -> object:
    """Return the object that stands for equal values; unlike a tuple, it is hashed at once."""
    return object()


def judging(
    request: Request, policies: Policies, unit_mib: int, scarcity: Scarcity
) -> Callable[[Look, str], Verdict]:
    """Return ``decide`` for many nodes, which judges nodes in the same state once."""
    is_shared = not (request.policy.only or request.policy.never)
    known: dict[object, Verdict] = {}

    def judge(look: Look, node: str) -> Verdict:
        found = known.get(look.state)
        if found is None:
            found = decide(look, request, policies, unit_mib, node, scarcity=scarcity)
            if is_shared and look.cards is not None:
                known[look.state] = found
            return found
        return (*found[:3], node) if isinstance(found, tuple) else found

    return judge


def decide(
    look: Look,
    request: Request,
    policies: Policies,
    unit_mib: int,
    node: str,
    *,
    scarcity: Scarcity = NOT_KNOWN,
) -> Verdict:
    """Return the rank of the node for such a pod, or why the pod does not fit there."""
    cards = look.cards
    if cards is None:
        return look.closed or NO_CARDS
    account = cards.account
    if not look.is_plain or request.sets_limits:
        reason = card_choice.why_unserved(account.inventory, request, unit_mib)
        if reason is not None:
            return reason
    found = rank(cards, request, policies, node, scarcity=scarcity)
    if found is not None:
        return found
    if look.is_less:
        found = rank(
            FreeCards(account, left=cards.left), request, policies, node, scarcity=scarcity
        )
        if found is not None:
            return (1, *found[1:])
    return card_choice.why_no_set(account, request)


def request_of(pod: Pod, policies: Policies) -> Request:
    """Return the pod's request; raise RequestError if this configuration cannot satisfy it."""
    request = pod_annotations.request_of(pod)
    asked = requests_of(pod)
    cpu, memory = (limited(asked.get(name, 0)) for name in ("cpu", "memory"))
    request = replace(request, cpu=cpu, memory=memory)
    if request.policy.node_policy is NodePolicy.SHAPE and not policies.shape:
        raise RequestError(
            f"annotation {ANNOTATION_NODE_POLICY} is 'shape', and the extender's configuration "
            "has none: write binpack or spread"
        )
    return request


def cards_of(node: Node, unit_mib: int) -> tuple[Inventory | None, str, Reason | None]:
    """Return the node's cards, an error in its annotations, and why it takes no new pods."""
    try:
        found = inventory.of_node(node, unit_mib)
    except RecordError as err:
        return None, str(err), UNREADABLE
    leaving = LEAVING if found is not None and found.is_leaving else None
    try:
        return found and inventory.with_cordons(found, node), "", leaving
    except RecordError as err:
        return found, str(err), UNREADABLE_CORDON
