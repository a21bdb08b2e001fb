"""Claim GPUs for the pods for which kube-scheduler evicts others (pure).

Until such a pod is bound, kube-scheduler counts it on its nominated node, against pods of the same
or a lower priority (framework/runtime, RunFilterPluginsWithNominatedPods), but only in sums.
Without a claim such a pod could get the GPU on which the victims ran.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Final

from extender.decisions.cluster_state import ClusterState
from extender.decisions.gangs.gangs import Gangs
from extender.decisions.gangs.giving_way import make_way_for_claim
from gpushare.annotations.slot_hint import is_nominated
from gpushare.cards.model import Card, Request
from gpushare.errors import RequestError
from gpushare.ledger.accounts import NodeAccount
from gpushare.ledger.holds import Claim, Slot
from gpushare.objects.model import Pod
from gpushare.objects.pod_requests import as_requests, requests_of
from gpushare.placement import card_choice

# kube-scheduler writes the nominated node right after it has received the proposals that are kept.
PROPOSED_SECONDS: Final = 5.0
EVICTED_SECONDS: Final = 30.0  # after which the watch shows the deletion of the proposed victims
# kube-scheduler removes the nominated node if it tries the pod a moment before the extender has
# seen the end of the victims. It tries the pod again after at most 10 s (podMaxBackoffSeconds).
REMOVED_SECONDS: Final = 12.0


@dataclass(frozen=True, slots=True)
class _Proposed:
    """The victims by node of the proposals that were kept, and when that was."""

    victims: Mapping[str, Sequence[str]]
    at: float


@dataclass(frozen=True, slots=True)
class _Claimed:
    """The node of a claim, and when it ends; never while the pod is nominated."""

    node: str
    until: float


class NominatedClaims:
    """A claim for each pod with a nominated node, if its scheduler wrote it and asks the extender.

    It lasts for REMOVED_SECONDS after kube-scheduler has removed the nominated node.
    """

    def __init__(self, state: ClusterState, gangs: Gangs) -> None:
        self._state, self._ledger, self._gangs = state, state.ledger, gangs
        self._proposed: dict[str, _Proposed] = {}  # by uid
        self._claimed: dict[str, _Claimed] = {}  # by uid
        self._found_free: set[str] = set()  # uids, since their proposals were kept

    def propose(self, pod: Pod, victims: Mapping[str, Sequence[str]]) -> None:
        """Note the kept proposals, by node; a single one is where kube-scheduler will evict."""
        now = self._state.clock.monotonic()
        self._proposed = dict(self._kept())
        self._proposed[pod.uid] = _Proposed(victims, now)
        self._found_free.discard(pod.uid)
        if len(victims) == 1:
            self._claim(pod, next(iter(victims)), now + PROPOSED_SECONDS)

    def proposed_at(self, uid: str) -> float:
        """Return when proposals for a pod were last kept."""
        found = self._proposed.get(uid)
        return found.at if found is not None else -inf

    @property
    def victims(self) -> frozenset[str]:
        """The uids of the pods that kube-scheduler is about to evict."""
        return frozenset(uid for each in self._kept() for uid in self._of_one_node(*each))

    @property
    def possible_victims(self) -> frozenset[str]:
        """The uids of the pods of which kube-scheduler may be about to evict some."""
        nodes = (victims for _, found in self._kept() for victims in found.victims.values())
        return frozenset(uid for victims in nodes for uid in victims)

    def promised_units(self, pod: Pod) -> int:
        """Return what other pods of its namespace will use that have kept proposals and no claim.

        Where kube-scheduler evicts for them is not known yet.
        """
        state, namespace, units = self._state, pod.metadata.namespace, 0
        for uid, _ in self._kept():
            other = state.pod(uid)
            if other is None or uid == pod.uid or other.metadata.namespace != namespace:
                continue
            if other.node or self._ledger.has_reserve(uid):
                continue
            with suppress(RequestError):
                units += state.request_of(other).units
        return units

    def _kept(self) -> Iterator[tuple[str, _Proposed]]:
        now = self._state.clock.monotonic()
        found = self._proposed.items()
        return ((uid, each) for uid, each in found if now - each.at < PROPOSED_SECONDS)

    def _of_one_node(self, uid: str, found: _Proposed) -> Sequence[str]:
        """Return the victims on the node that kube-scheduler has chosen, if that is known."""
        victims = found.victims
        if len(victims) == 1:
            return next(iter(victims.values()))
        claimed = self._claimed.get(uid)
        return victims.get(claimed.node, ()) if claimed is not None else ()

    def has_room(self, pod: Pod) -> bool:
        """Return whether kube-scheduler has made room for a pod, and has only tried it too early.

        kube-scheduler evicts nobody more for a pod while its victims end, but it may see their end
        before the extender does. The second answer for free room is False: if kube-scheduler has
        rejected the pod again, it has reasons of its own.
        """
        claimed, slot = self._claimed.get(pod.uid), self._ledger.claim_slot_of(pod.uid)
        if claimed is None or slot is None:
            return False
        if claimed.until < inf and not self._is_proposed(pod.uid):
            return False
        here = (e for e in self._ledger.shares(slot.node) if {*slot.cards} & {*e.cards})
        if any(self._state.will_end(each.pod_uid) for each in here):
            return True
        account = self._ledger.account(slot.node, besides=pod.uid, priority=pod.priority)
        is_free = account is not None and _is_free(account, slot)
        is_first = pod.uid not in self._found_free
        if is_free:
            self._found_free.add(pod.uid)
        return is_free and is_first

    def awaited(self, pod: Pod) -> str | None:
        """Return the nominated node of a pod as long as room is to become free for it there.

        kube-scheduler preempts on no other node while a victim of its own is Terminating on the
        nominated one, unless that is unresolvable (default_preemption.go,
        PodEligibleToPreemptOthers). A victim may never end.
        """
        node, slot = pod.status.nominated_node_name, self._ledger.claim_slot_of(pod.uid)
        is_claimed = slot is not None and slot.node == node
        is_proposed = self._is_proposed(pod.uid) and node in self._proposed[pod.uid].victims
        return node if is_claimed or is_proposed or is_nominated(pod) else None

    def pod_changed(self, pod: Pod) -> None:
        """Take a pod without a node that requests GPU memory, or its new version."""
        node, claimed = pod.status.nominated_node_name, self._claimed.get(pod.uid)
        is_ours = self._state.callers.ask_about(pod) and not is_nominated(pod)
        if node and is_ours and not pod.gates:
            self._claim(pod, node, inf)
        elif claimed is not None and claimed.until == inf:
            self._claim(pod, claimed.node, self._state.clock.monotonic() + REMOVED_SECONDS)

    def pod_gone(self, uid: str) -> None:
        """Take note that a pod is bound or gone; the ledger has ended its claim."""
        self._claimed.pop(uid, None)
        self._proposed.pop(uid, None)
        self._found_free.discard(uid)

    def renew(self) -> None:
        """Claim other GPUs of the same node where those claimed cannot be used any more."""
        pods, now = self._state.pods, self._state.clock.monotonic()
        self._claimed = {uid: each for uid, each in self._claimed.items() if each.until > now}
        for uid in list(self._claimed):
            pod = pods.pod(uid)
            if pod is not None and not pod.node:
                self.pod_changed(pod)

    def claim_all(self) -> None:
        """Claim GPUs for all nominated pods: before a new leader decides."""
        for record in list(self._state.pods.pending.values()):
            if record.pod is not None:
                self.pod_changed(record.pod)

    def forget(self) -> None:
        """Forget the claims: another replica decides. The caller drops them in the ledger."""
        self._claimed.clear()
        self._proposed.clear()
        self._found_free.clear()

    def _is_proposed(self, uid: str) -> bool:
        return self._state.clock.monotonic() - self.proposed_at(uid) < PROPOSED_SECONDS

    def _claim(self, pod: Pod, node: str, until: float) -> None:
        slot = self._slot(pod, node)
        if slot is None:
            self._drop(pod.uid)
            return
        self._claimed[pod.uid] = _Claimed(node, until)
        claim = Claim(f"nominated/{pod.uid}", (slot,), until, pod.priority)
        self._ledger.keep(claim)
        make_way_for_claim(self._gangs, claim)

    def _drop(self, uid: str) -> None:
        if self._claimed.pop(uid, None) is not None:
            self._ledger.drop(Claim, f"nominated/{uid}")

    def _slot(self, pod: Pod, node: str) -> Slot | None:
        """Return what the pod gets once the pods that end are gone, if possible as before."""
        account = self._account(pod, node)
        try:
            request = self._state.request_of(pod)
            requests = as_requests(requests_of(pod))
        except RequestError:
            return None
        if account is None:
            return None
        before = self._ledger.claim_slot_of(pod.uid)
        if before is not None and before.node == node:
            is_as_before = before.units == request.units_per_card
            if is_as_before and _is_free(account, before):
                here = [card for card in account.inventory.cards if card.uuid in before.cards]
                return before if self._is_permitted(pod, request, here) else None
        cards = card_choice.choose(account, request, self._state.policies.card)
        if cards is None or not self._is_permitted(pod, request, cards):
            return None
        uuids = tuple(card.uuid for card in cards)
        return Slot(node, uuids, request.units_per_card, pod.uid, requests)

    def _is_permitted(self, pod: Pod, request: Request, cards: Iterable[Card]) -> bool:
        """Return whether the quota permits it: two pods over it would keep each other out."""
        return self._state.quotas.why_not_on(pod, request, cards) is None

    def _account(self, pod: Pod, node: str) -> NodeAccount | None:
        """Return the account of a node without the pods that are about to end there."""
        proposed, now = self._proposed.get(pod.uid), self._state.clock.monotonic()
        is_recent = proposed is not None and now - proposed.at < EVICTED_SECONDS
        victims = proposed.victims.get(node, ()) if proposed is not None and is_recent else ()
        ended = {share.pod_uid for share in self._ledger.shares(node)}
        ended = {uid for uid in ended if uid in victims or self._state.will_end(uid)}
        trial = self._ledger.overlay()
        for uid in ended:
            trial.remove_share(uid)
        return trial.account(node, besides=pod.uid, priority=pod.priority)


def _is_free(account: NodeAccount, slot: Slot) -> bool:
    free = {each.card.uuid: each.free for each in account.open}
    return all(free.get(uuid, 0) >= slot.units for uuid in slot.cards)
