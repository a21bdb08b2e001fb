"""What one node is for one pod: how good it is, or why it takes it not (pure).

Filter, bind, explain and the simulator all ask here.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from gpushare.annotations import inventory, pod_annotations
from gpushare.cards.model import Inventory, Request
from gpushare.cards.placement_policy import NodePolicy
from gpushare.contract import ANNOTATION_NODE_POLICY, EARLY_BINDING
from gpushare.errors import RecordError, RequestError
from gpushare.ledger.ledger import NodeAccount
from gpushare.objects.model import Node, Pod
from gpushare.placement import card_choice
from gpushare.placement.card_choice import NOTHING, FreeCards
from gpushare.placement.rank import Policies, Rank, rank
from gpushare.placement.reasons import (
    LEAVING,
    NO_CARDS,
    UNREADABLE,
    UNREADABLE_CORDON,
    Reason,
)

Verdict = Rank | Reason


@dataclass(frozen=True, slots=True)
class Look:
    """What of a node is the same for all requests.

    ``closed`` is why it takes none, else ``room`` is there, less what is expected, and ``bare``
    without that. ``is_plain``: the node's setup serves every pod.
    """

    closed: Reason | None
    room: FreeCards | None = None
    bare: FreeCards | None = None
    is_plain: bool = False


def look(
    account: NodeAccount | None,
    closed: Reason | None,
    unit_mib: int,
    taken: Mapping[str, int] = NOTHING,
) -> Look:
    """Look at a node that takes nothing if it is ``closed``; ``taken`` is as in FreeCards."""
    if closed is not None or account is None:
        return Look(closed or NO_CARDS)
    bare = FreeCards(account)
    room = FreeCards(account, taken) if taken else bare
    is_plain = account.inventory.unit_mib == unit_mib
    is_plain = is_plain and account.inventory.binding != EARLY_BINDING
    is_plain = is_plain and not account.inventory.injection
    return Look(None, room, bare, is_plain)


def decide(look: Look, request: Request, policies: Policies, unit_mib: int, node: str) -> Verdict:
    """The rank of the node for such a pod, or why it does not fit there."""
    room, bare = look.room, look.bare
    if room is None or bare is None:
        return look.closed or NO_CARDS
    if not look.is_plain:
        reason = card_choice.why_unserved(bare.account.inventory, request, unit_mib)
        if reason is not None:
            return reason
    found = rank(room, request, policies, node)
    if found is None and room is not bare:
        found = rank(bare, request, policies, node)
        if found is not None:
            return (1, *found[1:])
    if found is not None:
        return found
    return card_choice.why_no_set(bare.account, request)


def request_of(pod: Pod, policies: Policies) -> Request:
    """What the pod asks for; RequestError for what this configuration can grant nowhere."""
    request = pod_annotations.request_of(pod)
    if request.policy.node_policy is NodePolicy.SHAPE and not policies.shape:
        raise RequestError(
            f"annotation {ANNOTATION_NODE_POLICY} is 'shape', and the extender's configuration "
            "has none: write binpack or spread"
        )
    return request


def cards_of(node: Node, unit_mib: int) -> tuple[Inventory | None, str, Reason | None]:
    """The node's cards, what is wrong with its annotations, and why it takes no pods then."""
    try:
        found = inventory.of_node(node, unit_mib)
    except RecordError as err:
        return None, str(err), UNREADABLE
    leaving = LEAVING if found is not None and found.is_leaving else None
    try:
        return found and inventory.with_cordons(found, node), "", leaving
    except RecordError as err:
        return found, str(err), UNREADABLE_CORDON
