"""explain: why a pod is Pending, node by node and GPU by GPU, and what would help (pure).

Computed on request with the same decision that filter and bind make.
"""

from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Final

import msgspec

from gpushare.annotations.pod_annotations import asks_for_share
from gpushare.answers import what_if
from gpushare.answers.gangs import GangView
from gpushare.answers.inspect import limit_text
from gpushare.answers.pending.facts import EVICTING, QUOTA, UNREADABLE, Pending, without_names
from gpushare.answers.pending.text import sentence
from gpushare.answers.pending.why import Known, why_pending
from gpushare.answers.queue.entries import QueuePlace
from gpushare.cards.model import BY_POD, Request, Share
from gpushare.contract import BY_DRIVER
from gpushare.errors import RequestError
from gpushare.ledger.accounts import CardAccount, NodeAccount
from gpushare.objects.model import Pod
from gpushare.placement import node_constraints
from gpushare.placement.card_choice import why_not_card
from gpushare.placement.reasons import NO_CARDS, Reason

NODES_SHOWN: Final = 20
_WITHOUT_OUTLOOK: Final = frozenset({EVICTING, QUOTA})


@dataclass(frozen=True, slots=True)
class Asked:
    """``reasons`` to number of nodes; empty if the pod fits on some of the ``offered`` nodes.

    ``since`` is the first time that it fitted on none, ``at`` the last call; monotonic clock.
    """

    since: float
    at: float
    offered: int
    reasons: dict[str, int] = field(default_factory=dict)


class _View(msgspec.Struct, rename="camel"):
    pass


class Holder(_View):
    """A pod on a card. ``terminating``: it is being deleted and uses its units until it ends.

    ``until`` is when its containers are killed at the latest, by the API server's clock.
    The names are empty if the caller may not see pods of that namespace.
    """

    namespace: str
    name: str
    units: int
    priority: int
    terminating: bool
    until: str = ""


class CardView(_View):
    """All amounts are units of this one card; ``why`` is empty if the pod fits."""

    index: int
    uuid: str
    health: str
    units: int
    used: int
    reserved: int
    claimed: int
    free: int
    needed: int
    fits: bool
    why: str
    pods: list[Holder]


class NodeView(_View):
    """``why`` is filter's; ``forbidden`` are kube-scheduler's own rules against the node.

    ``unit_mib`` is of the node's amounts, 0 without GPUs; the needs are in the cluster's unit.
    """

    name: str
    fits: bool
    why: str
    forbidden: list[str]
    cards: list[CardView]
    unplaced: list[Holder]
    unit_mib: int = msgspec.field(name="unitMiB", default=0)


class AskedView(_View):
    """kube-scheduler's last question.

    ``never_offered``: nodes with shared GPUs that it did not ask about. ``reasons`` to number of
    nodes; empty if the pod fits on some of them.
    """

    seconds_ago: float
    waiting_seconds: float
    offered: int
    never_offered: int | None
    reasons: dict[str, int]


class Condition(_View):
    status: str
    reason: str
    message: str


class Asks(_View):
    units: int
    cards: int
    units_per_card: int


class Place(_View):
    """``certain`` is false until the outcome of the binding is known.

    ``limit`` says what keeps the pod's containers to their share; empty if that is not stated.
    """

    node: str
    cards: list[int]
    uuids: list[str]
    certain: bool
    problem: str = ""
    limit: str = ""


class PodView(_View, omit_defaults=True):
    """``state``: waiting, bound, binding, gated, ending, or refused whatever the cluster has.

    ``scheduled`` is the pod's own condition PodScheduled. ``reasons`` and ``forbidden`` count all
    nodes: by filter's reason, and by the first of kube-scheduler's own rules against the node.
    ``nodes`` are the nearest to fitting, ``nodes_left_out`` counts the others. ``outlook`` is the
    what-if of a pod that waits for room, unless pods are evicted for it. ``pending`` are the facts
    in ``says`` about a pod without a node. ``gang`` is the pod's gang, ``queue`` the pod's place,
    or that of its gang, among all that waits.
    """

    namespace: str
    name: str
    uid: str
    state: str
    says: str
    priority: int
    asks: Asks | None
    scheduled: Condition | None
    nominated_node: str
    places: list[Place]
    asked: AskedView | None
    fitting_nodes: int
    reasons: dict[str, int]
    forbidden: dict[str, int]
    nodes: list[NodeView]
    nodes_left_out: int
    outlook: what_if.Answer | None = None
    pending: Pending | None = None
    gang: GangView | None = None
    queue: QueuePlace | None = None
    unit_mib: int = msgspec.field(name="unitMiB", default=0)


def explain(
    known: Known, pod: Pod, asked: Asked | None, *, now: float, shown: int = NODES_SHOWN
) -> Generator[None, None, PodView]:
    """Explain where ``pod`` is, or why it is Pending, in short steps.

    If it is Pending, the same steps try where it would fit, as what-if does.
    """
    condition = pod.condition("PodScheduled")
    view = PodView(
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        uid=pod.uid,
        state="waiting",
        says="",
        priority=pod.priority,
        asks=None,
        scheduled=Condition(condition.status, condition.reason or "", condition.message or "")
        if condition is not None
        else None,
        nominated_node=pod.status.nominated_node_name or "",
        places=_places(known, pod),
        asked=_asked(known, asked, now) if asked is not None else None,
        fitting_nodes=0,
        reasons={},
        forbidden={},
        nodes=[],
        nodes_left_out=0,
        gang=known.gangs.view_of(pod.uid),
        unit_mib=known.unit_mib,
    )
    if pod.node:
        view.state, view.says = "bound", f"bound to node {pod.node}"
        if view.places and view.places[0].problem:
            view.says += f", on which of its GPUs is unknown: {view.places[0].problem}"
        return view
    view.pending = yield from why_pending(known, pod, gang=view.gang)
    view.state, view.says = _state(pod, view), sentence(view.pending)
    view.queue = yield from known.queue.place_of(pod)
    if not asks_for_share(pod):
        return view
    try:
        request = known.request_of(pod)
    except RequestError:
        return view
    view.asks = Asks(request.units, request.card_count, request.units_per_card)
    yield from _judge(known, pod, request, view, shown)
    if view.state == "waiting" and view.pending.cause not in _WITHOUT_OUTLOOK:
        view.outlook = yield from what_if.answer(known, what_if.Question(pod))
    return view


def without_names_of_others(view: PodView, namespace: str) -> PodView:
    """Remove the names of pods outside ``namespace``, for a caller who may not list them."""
    for node in view.nodes:
        for holder in (*node.unplaced, *(pod for card in node.cards for pod in card.pods)):
            if holder.namespace != namespace:
                holder.namespace = holder.name = ""
    eviction = view.outlook.would_have_to_go if view.outlook is not None else None
    for victim in eviction.pods if eviction is not None else ():
        if victim.namespace != namespace:
            victim.namespace = victim.name = victim.uid = ""
    if view.pending is not None:
        view.pending = without_names(view.pending, namespace)
        view.says = sentence(view.pending)
    return view


@dataclass(frozen=True, slots=True)
class _Judged:
    """A node with kube-scheduler's rules that reject it, and gpushare's reason."""

    name: str
    rules: list[str]
    reason: Reason | None
    account: NodeAccount | None


def _judge(
    known: Known, pod: Pod, request: Request, view: PodView, shown: int
) -> Generator[None, None, None]:
    judged: list[_Judged] = []
    uid, priority = pod.uid, pod.priority
    for name in sorted(known.node_names()):
        yield
        node = known.node(name)
        rules = node_constraints.why_not(pod, node) if node is not None else []
        reason = known.why_not(name, request, pod)
        account = known.ledger.account(name, besides=uid, priority=priority)
        judged.append(_Judged(name, rules, reason, account))
    view.reasons = dict(Counter(each.reason.text for each in judged if each.reason is not None))
    view.fitting_nodes = sum(each.reason is None for each in judged)
    view.forbidden = dict(Counter(each.rules[0] for each in judged if each.rules))
    judged.sort(key=_distance)
    for each in judged[:shown]:
        yield
        view.nodes.append(_view_node(known, request, each))
    view.nodes_left_out = len(judged) - len(view.nodes)


def _distance(node: _Judged) -> tuple[bool, bool, bool, int, str]:
    """Return a key that sorts first the nodes on which the pod comes nearest to fitting."""
    account, reason = node.account, node.reason
    largest = account.largest_free[0] if account is not None and account.largest_free else 0
    is_final = reason is not None and reason.is_final
    return bool(node.rules), reason is not None, is_final, -largest, node.name


def _state(pod: Pod, view: PodView) -> str:
    if view.pending is not None and view.pending.cause == UNREADABLE:
        return "refused"
    if pod.metadata.deletion_timestamp is not None:
        return "ending"
    if view.places:
        return "binding"
    return "gated" if pod.gates else "waiting"


def never_offered(known: Known, asked: Asked) -> int | None:
    """Count the nodes with shared GPUs that kube-scheduler left out; None if not counted.

    It applies its own rules first, and samples if percentageOfNodesToScore is not 100.
    """
    if not asked.reasons:
        return None
    without = asked.reasons.get(NO_CARDS.text, 0)
    return max(0, len(known.node_names()) - (asked.offered - without))


def _asked(known: Known, asked: Asked, now: float) -> AskedView:
    return AskedView(
        seconds_ago=round(now - asked.at, 3),
        waiting_seconds=round(now - asked.since, 3),
        offered=asked.offered,
        never_offered=never_offered(known, asked),
        reasons=asked.reasons,
    )


def _places(known: Known, pod: Pod) -> list[Place]:
    share = known.ledger.share(pod.uid)
    if share is not None:
        return [_place(known, share.node, share.cards, problem=share.why_unplaced)]
    return [
        _place(known, each.node, each.cards, is_certain=False)
        for each in known.ledger.reserves()
        if each.pod_uid == pod.uid
    ]


def _place(
    known: Known, node: str, uuids: tuple[str, ...], *, is_certain: bool = True, problem: str = ""
) -> Place:
    account = known.ledger.account(node)
    cards = [card for card in account.inventory.cards if card.uuid in uuids] if account else []
    least = min(cards, key=lambda card: card.enforces == BY_DRIVER, default=None)
    limit = limit_text(least.enforces, least.why_not_more) if least is not None else ""
    indexes = [card.index for card in cards]
    return Place(node, indexes, list(uuids), is_certain, problem, limit)


def _view_node(known: Known, request: Request, node: _Judged) -> NodeView:
    account, reason = node.account, node.reason
    shares = sorted(known.ledger.shares(node.name), key=BY_POD)
    return NodeView(
        name=node.name,
        fits=reason is None,
        why=reason.text if reason is not None else "",
        forbidden=node.rules,
        cards=[_view_card(known, account, entry, request, shares) for entry in account.cards]
        if account is not None
        else [],
        unplaced=[_holder(known, share) for share in shares if share.units_everywhere],
        unit_mib=account.inventory.unit_mib if account is not None else 0,
    )


def _view_card(
    known: Known, account: NodeAccount, entry: CardAccount, request: Request, shares: list[Share]
) -> CardView:
    reason = why_not_card(account, entry, request, known.unit_mib)
    return CardView(
        index=entry.card.index,
        uuid=entry.card.uuid,
        health=entry.card.health.value,
        units=entry.card.units,
        used=entry.used,
        reserved=entry.reserved,
        claimed=entry.claimed,
        free=entry.free,
        needed=request.units_per_card,
        fits=reason is None,
        why=reason.text if reason is not None else "",
        pods=[_holder(known, share) for share in shares if entry.card.uuid in share.cards],
    )


def _holder(known: Known, share: Share) -> Holder:
    pod = known.pod(share.pod_uid)
    until = pod.metadata.deletion_timestamp if pod is not None else None
    return Holder(
        share.namespace,
        share.name,
        share.units,
        pod.priority if pod is not None else 0,
        until is not None,
        until or "",
    )
