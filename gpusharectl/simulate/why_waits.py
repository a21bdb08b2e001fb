"""Explain by node and GPU why pods of a simulation are Pending (pure)."""

import heapq
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from gpushare.annotations.pod_annotations import asks_for_share
from gpushare.answers.pending.sentences import Sentences
from gpushare.answers.pending.text import Parts, joined
from gpushare.cards.model import Request
from gpushare.contract import RESOURCE_MEMORY
from gpushare.groups.model import GroupKey
from gpushare.objects.model import Pod
from gpushare.objects.pod_requests import requests_of
from gpushare.placement.card_choice import FreeCards, why_not_card
from gpushare.placement.reasons import NO_CARDS, Reason
from gpushare.planning.capacity import members_on
from gpushare.planning.shapes import Reader
from gpushare.process.time_slices import run_all
from gpushare.quota.reasons import OVER_MODEL_QUOTA
from gpushare.text.counted import counted
from gpusharectl.simulate import view
from gpusharectl.simulate.gangs import SimulatedGangs
from gpusharectl.simulate.other_systems.other_pods import gpus_of
from gpusharectl.simulate.queued import QueuedPod
from gpusharectl.simulate.simulated_cluster import TOO_LITTLE, SimulatedCluster
from gpusharectl.simulate.world import SimulatedWorld

NODES_SHOWN: Final = 5  # of those on which a Pending pod does not fit


class _Why(NamedTuple):
    """Why a pod does not fit on a node; sorts by how near it comes to fitting."""

    is_kept_off: bool
    free: int  # of the GPU with most, negated
    name: str
    text: str


@dataclass(slots=True)
class Reasons:
    """By node, why pods with equal requests are Pending, after the change ``seen``.

    ``full`` are the models of GPUs for which the quota left too little then.
    """

    seen: int = 0
    nodes: dict[str, _Why] = field(default_factory=dict)
    full: frozenset[str] = frozenset()


class WhyWaits:
    """Keeps what it has found out about pods until that changes."""

    def __init__(self, cluster: SimulatedCluster, gangs: SimulatedGangs) -> None:
        self._cluster, self._gangs = cluster, gangs
        self._world = SimulatedWorld(cluster, gangs)
        self._sentences, self._reader = Sentences(self._world), Reader(self._world)
        self._reasons: dict[bytes, Reasons] = {}

    def views(self, queue: Iterable[QueuedPod]) -> tuple[view.Waiting, ...]:
        """Explain why all pods of the queue are Pending, those together that are alike."""
        self._sentences.renew()
        groups: dict[tuple[bytes, str, GroupKey | None], list[QueuedPod]] = {}
        for each in queue:
            gang = self._gangs.of(each.event.pod)
            key = each.kind, each.says, gang.key if gang is not None else None
            groups.setdefault(key, []).append(each)
        self._reasons = {kind: self._reasons.get(kind, Reasons()) for kind, _, _ in groups}
        return tuple(self._group(says, pods) for (_, says, _), pods in groups.items())

    def _group(self, says: str, pods: list[QueuedPod]) -> view.Waiting:
        names = tuple(
            view.WaitingPod(p.event.pod.metadata.namespace, p.event.pod.metadata.name, p.event.at)
            for p in pods
        )
        pod = pods[0].event.pod
        if gpus_of(pod):
            text, cards = _why_no_whole_gpus(self._cluster, pod), gpus_of(pod)
            return view.Waiting(names, pod.priority, 0, cards, 0, "", text, {}, (), 0, own=text)
        said, group = run_all(self._sentences.parts(pod)), self._gangs.of(pod)
        gang = group.key.name if group is not None else ""
        if not says and asks_for_share(pod):
            before = self._reasons[pods[0].kind]
            over = self._gangs.why_over(group) if group is not None else None
            return self._of(pod, names, before, gang=gang, said=said, over=over)
        text = joined(gang, said)
        return view.Waiting(
            names, pod.priority, 0, 0, 0, says, text, {}, (), 0, gang=gang, own=said.own
        )

    def _of(
        self,
        pod: Pod,
        waiting: tuple[view.WaitingPod, ...],
        before: Reasons,
        *,
        gang: str,
        said: Parts,
        over: Reason | None = None,
    ) -> view.Waiting:
        """Explain by node and GPU why pods like this one are Pending; may raise RequestError.

        ``before`` has the previous reasons, and is updated; what is ``said`` sums them up. ``over``
        is set if the quota leaves too little for the gang of the pods: then no node matters.
        """
        cluster = self._cluster
        request = cluster.request_of(pod)
        full = over or cluster.quotas.why_not(pod, request)
        nodes: tuple[view.NodeWhy, ...] = ()
        if isinstance(full, Reason):
            reasons, left = {full.text: len(cluster.sharing_names())}, 0
        else:
            self._update(before, pod, request, full)
            numbers = Counter(each.text for each in before.nodes.values())
            reasons = dict(sorted(numbers.items(), key=lambda each: (-each[1], each[0])))
            nearest = heapq.nsmallest(NODES_SHOWN, before.nodes.values())
            nodes = tuple(self._node(each, pod, request, len(waiting)) for each in nearest)
            left = len(before.nodes) - len(nearest)
        return view.Waiting(
            pods=waiting,
            priority=pod.priority,
            units=request.units,
            cards=request.card_count,
            units_per_card=request.units_per_card,
            says="",
            sentence=joined(gang, said),
            reasons=reasons,
            nodes=nodes,
            nodes_left_out=left,
            gang=gang,
            own=said.own,
        )

    def _update(self, before: Reasons, pod: Pod, request: Request, full: frozenset[str]) -> None:
        cluster = self._cluster
        changes = cluster.ledger.changes
        is_known = before.nodes and before.full == full
        changed = changes.since(before.seen) if is_known else None
        verdicts, asked = cluster.verdicts(request), requests_of(pod)
        barred = cluster.namespace_use.nodes_with(full)
        for name in cluster.sharing_names() if changed is None else changed:
            account = cluster.ledger.account(name)
            if account is None and name not in cluster.closed:
                before.nodes.pop(name, None)
                continue
            kept_off = cluster.why_kept_off(pod, asked, name)
            largest = account.largest_free[0] if account and account.largest_free else 0
            found = "" if name in verdicts.fits else verdicts.rejected.get(name, NO_CARDS).text
            if not found and name in barred:
                found = OVER_MODEL_QUOTA.text
            if found and kept_off == TOO_LITTLE + RESOURCE_MEMORY:
                kept_off = ""  # the GPUs tell more than their sum
            before.nodes[name] = _Why(bool(kept_off), -largest, name, kept_off or found)
        before.seen, before.full = changes.now, full

    def _node(self, why: _Why, pod: Pod, request: Request, pods: int) -> view.NodeWhy:
        account = self._cluster.ledger.account(why.name)
        if account is None:
            return view.NodeWhy(why.name, why.text, ())
        found = []
        for entry in account.cards:
            reason = why_not_card(account, entry, request, self._cluster.unit_mib)
            text = reason.text if reason is not None else ""
            found.append(view.CardWhy(entry.card.index, entry.free, text))
        room = 0
        if not why.text:
            free = self._world.free_resources(why.name) or {}
            room = min(pods, members_on(self._reader.shape_of(pod), FreeCards(account), free))
        return view.NodeWhy(why.name, why.text, tuple(found), room)


def _why_no_whole_gpus(cluster: SimulatedCluster, pod: Pod) -> str:
    """Say why a pod waits that requests whole GPUs, which are not placed here."""
    wanted = gpus_of(pod)
    text = f"requests {counted(wanted, 'whole GPU')}"
    idle = cluster.idle_whole_gpus()
    if not idle:
        return f"{text}, which no node offers, not {RESOURCE_MEMORY}"
    most = max(idle.values())
    there = f"{most} {'are' if most > 1 else 'is'} idle on one node"
    if not most:
        return f"{text}; none is idle"
    return f"{text}; at most {there}" if most < wanted else f"{text}, not placed here; {there}"
