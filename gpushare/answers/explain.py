"""explain: why a pod waits, node by node and card by card (pure).

Computed when it is asked, by the decision that filter and bind make.
"""

from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec

from gpushare.cards.model import Request, Share
from gpushare.errors import RequestError
from gpushare.ledger.ledger import CardAccount, NodeAccount
from gpushare.objects.model import Pod
from gpushare.placement import node_constraints
from gpushare.placement.card_verdicts import why_not_card
from gpushare.placement.reasons import NO_CARDS, Reason
from gpushare.placement.trial import World
from gpushare.text.counted import counted

NODES_SHOWN: Final = 20
_REASONS_SAID: Final = 5


@dataclass(frozen=True, slots=True)
class Asked:
    """``reasons`` to number of nodes; none where some of the ``offered`` nodes would do.

    ``since`` is the first time that none would, ``at`` the last call; both of a monotonic clock.
    """

    since: float
    at: float
    offered: int
    reasons: dict[str, int] = field(default_factory=dict)


class Known(World, Protocol):
    """The cluster as the extender knows it."""

    def pod(self, uid: str) -> Pod | None:
        """A live pod that names our resources."""
        ...

    def why_not(self, node: str, request: Request, pod: Pod) -> Reason | None:
        """Why filter would refuse a node now."""
        ...


class _View(msgspec.Struct, rename="camel"):
    pass


class Holder(_View):
    """A pod on a card. ``terminating``: it is about to end, and holds its units until it has.

    ``until`` is when its containers are killed at the latest, by the API server's clock.
    The names are empty where the caller may not see pods of that namespace.
    """

    namespace: str
    name: str
    units: int
    priority: int
    terminating: bool
    until: str = ""


class CardView(_View):
    """``needed`` and all amounts are units of this one card; ``why`` is empty where it fits."""

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
    """``why`` is filter's; ``forbidden`` are kube-scheduler's own rules that keep the pod off."""

    name: str
    fits: bool
    why: str
    forbidden: list[str]
    cards: list[CardView]
    unplaced: list[Holder]


class AskedView(_View):
    """kube-scheduler's last question.

    ``never_offered``: nodes with shared GPUs that it did not ask about. ``reasons`` to number of
    nodes; none where some of them would do.
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
    """``certain`` is false while it is not known whether a binding has landed."""

    node: str
    cards: list[int]
    uuids: list[str]
    certain: bool
    problem: str = ""


class PodView(_View):
    """``state``: waiting, bound, binding, gated, ending, or refused whatever the cluster has.

    ``scheduled`` is the pod's own condition PodScheduled. ``reasons`` and ``forbidden`` are of all
    nodes, with their numbers: what filter says of their cards, and the first of kube-scheduler's
    own rules that keep the pod off. ``nodes`` are those that come nearest to having it,
    ``nodes_left_out`` how many more there are.
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


def explain(
    known: Known, pod: Pod, asked: Asked | None, *, now: float, shown: int = NODES_SHOWN
) -> Generator[None, None, PodView]:
    """Why ``pod`` is where it is, or is nowhere, in steps that are short each."""
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
    )
    if pod.node:
        view.state, view.says = "bound", f"bound to node {pod.node}"
        if view.places and view.places[0].problem:
            view.says += f", and which of its GPUs it uses cannot be told: {view.places[0].problem}"
        return view
    try:
        request = known.request_of(pod)
    except RequestError as err:
        view.state, view.says = "refused", str(err)
        return view
    view.asks = Asks(request.units, request.card_count, request.units_per_card)
    yield from _look(known, pod, request, view, shown)
    _say(pod, view)
    return view


def without_names_of_others(view: PodView, namespace: str) -> PodView:
    """The same for who may see the pods of one namespace alone: amounts stay, names go."""
    for node in view.nodes:
        for holder in (*node.unplaced, *(pod for card in node.cards for pod in card.pods)):
            if holder.namespace != namespace:
                holder.namespace = holder.name = ""
    return view


def _look(
    known: Known, pod: Pod, request: Request, view: PodView, shown: int
) -> Generator[None, None, None]:
    """Judge all nodes, and describe those that come nearest."""
    ranked: list[tuple[bool, bool, bool, int, str, Reason | None]] = []
    forbidden: Counter[str] = Counter()
    for name in sorted(known.node_names()):
        yield
        node = known.node(name)
        rules = node_constraints.why_not(pod, node) if node is not None else []
        forbidden.update(rules[:1])
        reason = known.why_not(name, request, pod)
        account = known.ledger.account(name, besides=pod.uid, priority=pod.priority)
        largest = account.largest_free[0] if account is not None and account.largest_free else 0
        is_final = reason is not None and reason.is_final
        ranked.append((bool(rules), reason is not None, is_final, -largest, name, reason))
    view.reasons = dict(Counter(reason.text for *_, reason in ranked if reason is not None))
    view.fitting_nodes = sum(reason is None for *_, reason in ranked)
    view.forbidden = dict(forbidden)
    ranked.sort(key=lambda each: each[:5])
    for *_, name, reason in ranked[:shown]:
        yield
        view.nodes.append(_view_node(known, pod, request, name, reason))
    view.nodes_left_out = len(ranked) - len(view.nodes)


def _say(pod: Pod, view: PodView) -> None:
    gates = [gate.name for gate in pod.spec.scheduling_gates or ()]
    if pod.metadata.deletion_timestamp is not None:
        view.state, view.says = "ending", "about to end without having been bound"
    elif view.places:
        view.state = "binding"
        view.says = "its GPU is reserved, and whether it is bound is not known yet"
    elif gates:
        view.state = "gated"
        view.says = f"kube-scheduler does not look at it before its gates go: {', '.join(gates)}"
    elif view.asked is None:
        # It asks about nodes that its own rules leave, of which there may be none.
        view.says = "kube-scheduler has not asked here about it"
        if view.scheduled is not None and view.scheduled.status == "False":
            view.says += f"; by its own word: {view.scheduled.message}"
    else:
        view.says = said(view.asked.offered, view.asked.reasons, view.asked.never_offered)


def said(offered: int, reasons: dict[str, int], never_offered: int | None) -> str:
    """What was found when kube-scheduler last asked, in a sentence or two."""
    if not reasons:
        which = "the one node" if offered == 1 else f"some of the {offered} nodes"
        return f"{which} that kube-scheduler last asked about would do"
    listed = sorted(reasons.items(), key=lambda each: (-each[1], each[0]))
    told = "; ".join(f"{number}: {text}" for text, number in listed[:_REASONS_SAID])
    left = len(listed) - _REASONS_SAID
    more = f"; {counted(left, 'more reason')}" if left > 0 else ""
    asked = " that kube-scheduler asked about would"
    which = (
        f"the one node{asked} not do" if offered == 1 else f"none of the {offered} nodes{asked} do"
    )
    text = f"{which} ({told}{more})"
    if never_offered:
        text += f". It did not ask about {counted(never_offered, 'node')} with shared GPUs"
    return text


def never_offered(known: Known, asked: Asked) -> int | None:
    """How many nodes with shared GPUs kube-scheduler left out; None where nothing was counted.

    It asks after its own rules, and about a sample where percentageOfNodesToScore is not 100.
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
        indexes = _indexes(known, share.node, share.cards)
        return [
            Place(share.node, indexes, list(share.cards), certain=True, problem=share.why_unplaced)
        ]
    return [
        Place(each.node, _indexes(known, each.node, each.cards), list(each.cards), certain=False)
        for each in known.ledger.reserves()
        if each.pod_uid == pod.uid
    ]


def _indexes(known: Known, node: str, uuids: tuple[str, ...]) -> list[int]:
    account = known.ledger.account(node)
    cards = account.inventory.cards if account is not None else ()
    return [card.index for card in cards if card.uuid in uuids]


def _view_node(
    known: Known, pod: Pod, request: Request, name: str, reason: Reason | None
) -> NodeView:
    node = known.node(name)
    account = known.ledger.account(name, besides=pod.uid, priority=pod.priority)
    shares = sorted(known.ledger.shares(name), key=lambda share: share.pod_key)
    return NodeView(
        name=name,
        fits=reason is None,
        why=reason.text if reason is not None else "",
        forbidden=node_constraints.why_not(pod, node) if node is not None else [],
        cards=[_view_card(known, account, entry, request, shares) for entry in account.cards]
        if account is not None
        else [],
        unplaced=[_holder(known, share) for share in shares if share.is_unplaced],
    )


def _view_card(
    known: Known,
    account: NodeAccount,
    entry: CardAccount,
    request: Request,
    shares: list[Share],
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
