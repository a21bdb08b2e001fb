"""Answer inspect: the use of every card, in Aliyun gpushare's JSON with our own fields (pure)."""

from collections.abc import Generator, Mapping
from typing import Final

import msgspec

from gpushare.cards.model import BY_POD, FORGET_GONE_SECONDS, Share
from gpushare.contract import BY_DRIVER, BY_FRAMEWORK, BY_NOTHING
from gpushare.ledger.accounts import CardAccount, used_by_pods
from gpushare.ledger.ledger import Ledger
from gpushare.text.natural import natural


class PodUse(msgspec.Struct):
    name: str
    namespace: str
    used: int = msgspec.field(name="usedGPU")


class Device(msgspec.Struct):
    """``id`` is the card's index in the node; all amounts are units.

    ``gone_since`` is when the driver stopped showing the card, and ``forgotten_at`` from when on it
    leaves the inventory if no pod uses it, both in seconds since the Unix epoch; 0 if it is there.
    ``claimed`` is kept for pods that wait until current users are gone. Units may be used and
    claimed at the same time, but what is claimed is not free. ``enforces`` is what keeps containers
    to their share, and ``why_not_more`` why the driver does not.
    """

    id: int
    total: int = msgspec.field(name="totalGPU")
    used: int = msgspec.field(name="usedGPU")
    pods: list[PodUse]
    uuid: str
    model: str
    health: str
    cordoned: bool
    reserved: int
    free: int
    claimed: int = 0  # an extender of an earlier version does not tell it
    gone_since: int = msgspec.field(name="goneSince", default=0)
    forgotten_at: int = msgspec.field(name="forgottenAt", default=0)
    enforces: str = ""
    why_not_more: str = msgspec.field(name="whyNotMore", default="")
    unplaced_of_others: int = msgspec.field(name="unplacedOfOthers", default=0)


class UnplacedPod(msgspec.Struct):
    """``on_every_card``: the pod may run on any card, so its units count on each of them."""

    name: str
    namespace: str
    units: int
    why: str
    on_every_card: bool = msgspec.field(name="onEveryGPU", default=True)


class NodeView(msgspec.Struct):
    """``plugin`` is the version of the device plugin, empty for Aliyun gpushare's.

    ``reserve``: what each card keeps unshared beside what the driver reserves, as it was set.
    """

    name: str
    total: int = msgspec.field(name="totalGPU")
    used: int = msgspec.field(name="usedGPU")
    devices: list[Device] = msgspec.field(name="devs")
    unit_mib: int = msgspec.field(name="unitMiB")
    unplaced: list[UnplacedPod] = msgspec.field(default_factory=list)
    problem: str = ""
    plugin: str = ""
    reserve: str = ""


_ENFORCED: Final = {
    BY_DRIVER: "memory is limited by the driver",
    BY_FRAMEWORK: "memory is limited by frameworks",
    BY_NOTHING: "memory is not limited",
}


def limit_text(enforces: str, why_not_more: str) -> str:
    """Return in words what keeps containers to their share of a card, and why not the driver."""
    text = _ENFORCED.get(enforces, enforces)
    return f"{text}: {why_not_more}" if why_not_more else text


class ClusterView(msgspec.Struct):
    """``nodes`` are encoded NodeViews."""

    nodes: list[msgspec.Raw]


def view_cluster(ledger: Ledger, problems: Mapping[str, str]) -> Generator[None, None, ClusterView]:
    """Return a view of all nodes that gpushare knows, in short steps.

    ``problems`` are the errors in annotations, by node.
    """
    view = ClusterView([])
    used = {share.node for share in ledger.shares()}
    for name in sorted({*ledger.nodes(), *problems, *used}, key=natural):
        yield
        node = view_node(ledger, name, problems.get(name, ""))
        if node is not None:  # it may be deleted since the last step
            view.nodes.append(msgspec.Raw(msgspec.json.encode(node)))
    return view


def view_node(ledger: Ledger, name: str, problem: str = "") -> NodeView | None:
    """Return a view of a node's cards and their pods; None if gpushare does not know the node."""
    shares = sorted(ledger.shares(name), key=BY_POD)
    unplaced = [
        UnplacedPod(
            share.name,
            share.namespace,
            share.units,
            share.why_unplaced,
            on_every_card=not share.starts_nowhere,
        )
        for share in shares
        if share.is_unplaced
    ]
    account = ledger.account(name)
    if account is None:
        if not shares and not problem:
            return None
        return NodeView(name, 0, 0, [], 0, unplaced, problem or "node reports no GPUs")
    devices = [_view_card(entry, shares) for entry in account.cards]
    total = sum(device.total for device in devices)
    used = used_by_pods(account, shares)
    found = account.inventory
    return NodeView(
        name, total, used, devices, found.unit_mib, unplaced, problem, found.plugin, found.reserve
    )


def without_pods_of_others(view: NodeView, namespace: str) -> NodeView:
    """Remove pods outside ``namespace``, for a caller who may not list them; amounts stay.

    Each card has the units of hidden pods that may run on any card in ``unplaced_of_others``.
    """
    hidden = [pod for pod in view.unplaced if pod.namespace != namespace]
    everywhere = sum(pod.units for pod in hidden if pod.on_every_card)
    view.unplaced = [pod for pod in view.unplaced if pod.namespace == namespace]
    for card in view.devices:
        card.pods = [pod for pod in card.pods if pod.namespace == namespace]
        card.unplaced_of_others = everywhere
    return view


def _view_card(entry: CardAccount, shares: list[Share]) -> Device:
    gone_since = entry.card.gone_since
    return Device(
        id=entry.card.index,
        total=entry.card.units,
        used=entry.used,
        pods=[
            PodUse(share.name, share.namespace, share.units)
            for share in shares
            if entry.card.uuid in share.cards
        ],
        uuid=entry.card.uuid,
        model=entry.card.model,
        health=entry.card.health.value,
        cordoned=entry.card.is_cordoned,
        reserved=entry.reserved,
        free=entry.free,
        claimed=entry.claimed,
        gone_since=gone_since,
        forgotten_at=gone_since + FORGET_GONE_SECONDS if gone_since else 0,
        enforces=entry.card.enforces,
        why_not_more=entry.card.why_not_more,
    )
