"""preempt: which of kube-scheduler's proposals free the GPUs that the pod needs (pure).

kube-scheduler's own dry run knows only the sum of a node's units, and no gangs. A proposal after
which the pod would still not fit, or a gang would go on with too few members, is left out, so that
no pod is evicted in vain. Victims without whom the pod fits too are spared; none is ever added.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from extender.decisions.cluster_state import ClusterState
from extender.decisions.preemption.nominated import NominatedClaims
from extender.decisions.preemption.records import Preemptions
from gpushare.cards.model import Request
from gpushare.contract import LABEL_PREEMPTIBLE
from gpushare.errors import RequestError
from gpushare.objects.model import Pod
from gpushare.objects.pod_requests import requests_of
from gpushare.placement.node_resources import insufficient
from gpushare.placement.proposed_victims import why_not_without
from gpushare.placement.reasons import Reason
from gpushare.quota.reasons import OVER_MODEL_QUOTA


class Veto(StrEnum):
    """Why a proposal is left out."""

    NO_ROOM = "no_room"
    BREAKS_GANG = "breaks_gang"
    MEMBER_OF_GANG = "member_of_gang"
    OWN_EVICTION = "own_eviction"
    ROOM_IS_MADE = "room_is_made"
    NO_VICTIMS = "no_victims"
    FITS = "fits"
    REQUEST = "request"
    OVER_QUOTA = "over_quota"
    SMALLER = "smaller"


NO_VICTIMS = "kube-scheduler named no victims"
FITS = "the pod fits now without any eviction"
BREAKS_GANG = "a gang would go on with fewer members than it needs"
OWN_EVICTION = "the extender evicts other pods for this one"
SMALLER = "a less important or smaller pod on another GPU would do: the extender evicts that one"
ROOM_IS_MADE = "kube-scheduler has made room for the pod already"


@dataclass(frozen=True, slots=True)
class Proposals:
    """``kept`` are nodes on which the pod fits without these victims (uids).

    ``vetoed`` are the others, with the reasons as text.
    """

    kept: dict[str, tuple[str, ...]] = field(default_factory=dict)
    vetoed: dict[str, tuple[Veto, str]] = field(default_factory=dict)

    @classmethod
    def none(cls, nodes: Mapping[str, object], veto: Veto, text: str) -> "Proposals":
        """Return an answer that leaves out all proposals."""
        return cls({}, dict.fromkeys(nodes, (veto, text)))


class ProposalJudge:
    """``evicts``: whether the extender evicts pods itself, as soon as kube-scheduler does not.

    Then a proposal is left out if a single pod of the node would do that is less important than the
    victim, or as important and smaller. kube-scheduler chooses by sums, in which GPUs do not count.
    """

    def __init__(
        self, state: ClusterState, preemptions: Preemptions, nominated: NominatedClaims
    ) -> None:
        self._state, self._ledger = state, state.ledger
        self._preemptions, self._nominated = preemptions, nominated
        self.evicts = False

    def judge(self, pod: Pod, proposed: Mapping[str, Sequence[str]]) -> Proposals:
        """Sort proposed nodes, with the uids of their victims, by whether the pod would fit then.

        A node without victims is left out: kube-scheduler takes it for an error of the whole
        attempt. No pod is evicted for a request that no node can grant, nor if a node has got room
        since kube-scheduler has tried the pod: it tries the pod again. A failing node is no
        obstacle: it may take pods again once the victims are deleted.
        """
        whole = self._why_none(pod)
        if whole is not None:
            return Proposals.none(proposed, *whole)
        request = self._state.request_of(pod)
        proposed, found = self._within_quota(pod, request, proposed)
        for node, victims in proposed.items():
            why = self._why_not(pod, request, node, victims)
            if not victims:
                found.vetoed[node] = Veto.NO_VICTIMS, NO_VICTIMS
            elif why is not None:
                found.vetoed[node] = Veto.NO_ROOM, why.text
            else:
                needed = self._needed(pod, request, node, victims)
                if not needed:
                    return Proposals.none(proposed, Veto.FITS, FITS)
                if self._breaks_gang(needed):
                    found.vetoed[node] = Veto.BREAKS_GANG, BREAKS_GANG
                elif self._is_less_enough(pod, request, node, needed):
                    found.vetoed[node] = Veto.SMALLER, SMALLER
                else:
                    found.kept[node] = needed
        if found.kept:
            self._nominated.propose(pod, found.kept)
        return found

    def _why_none(self, pod: Pod) -> tuple[Veto, str] | None:
        """Return why no proposal is kept, whatever is proposed."""
        if self._preemptions.is_for(pod.uid):
            return Veto.OWN_EVICTION, OWN_EVICTION
        if self._nominated.has_room(pod):
            return Veto.ROOM_IS_MADE, ROOM_IS_MADE
        try:
            limit = self._full(pod, self._state.request_of(pod))
        except RequestError as err:
            return Veto.REQUEST, str(err)
        return (Veto.OVER_QUOTA, limit.text) if isinstance(limit, Reason) else None

    def _full(self, pod: Pod, request: Request) -> Reason | frozenset[str]:
        promised = self._nominated.promised_units(pod)
        return self._state.quotas.why_not(pod, request, promised=promised)

    def _within_quota(
        self, pod: Pod, request: Request, proposed: Mapping[str, Sequence[str]]
    ) -> tuple[Mapping[str, Sequence[str]], Proposals]:
        """Leave out the nodes that have GPUs of models of which the quota has too little left."""
        full = self._full(pod, request)
        if isinstance(full, Reason) or not full:
            return proposed, Proposals()
        nodes = self._state.namespace_use.nodes_with(full).intersection(proposed)
        left = {node: victims for node, victims in proposed.items() if node not in nodes}
        vetoed = dict.fromkeys(nodes)
        return left, Proposals.none(vetoed, Veto.OVER_QUOTA, OVER_MODEL_QUOTA.text)

    def _why_not(
        self, pod: Pod, request: Request, node: str, victims: Sequence[str]
    ) -> Reason | None:
        return self._state.closed.get(node) or why_not_without(
            self._ledger,
            node,
            request,
            victims,
            unit_mib=self._state.unit_mib,
            pod_uid=pod.uid,
            priority=pod.priority,
        )

    def _needed(
        self, pod: Pod, request: Request, node: str, victims: Sequence[str]
    ) -> tuple[str, ...]:
        """Return the victims without those whose end the pod does not need.

        kube-scheduler may have reasons that are not known here, except for a plain pod.
        """
        needed = list(victims)
        pods = [found for uid in victims if (found := self._state.pod(uid)) is not None]
        if not self._state.is_plain(pod) or not self._has_resources(pod, node, needed):
            return tuple(needed)
        for victim in sorted(pods, key=lambda each: -each.priority):
            left = [uid for uid in needed if uid != victim.uid]
            fits = self._why_not(pod, request, node, left) is None
            if fits and self._has_resources(pod, node, left):
                needed = left
        return tuple(needed)

    def _is_less_enough(
        self, pod: Pod, request: Request, node: str, victims: Sequence[str]
    ) -> bool:
        """Return whether the extender would do less harm on this node than by this one victim."""
        state, now = self._state, self._state.clock.monotonic()
        victim = state.pod(victims[0]) if len(victims) == 1 else None
        may_judge = victim is not None and self.evicts and state.is_plain(pod)
        if victim is None or not may_judge or self._preemptions.has_to_wait(pod.uid, now):
            return False
        harm = victim.priority, state.quotas.units_of(victim)
        spared, is_limited = self._preemptions.spared(now), state.victim_rules.preemptible_only
        return any(
            (each.priority, state.quotas.units_of(each)) < harm
            and not (each.metadata.deletion_timestamp or each.uid in spared)
            and not (is_limited and each.labels.get(LABEL_PREEMPTIBLE) != "true")
            and state.group_of(each.uid) is None
            and self._why_not(pod, request, node, [each.uid]) is None
            and self._has_resources(pod, node, [each.uid])
            for each in state.pods_of(node)
        )

    def _has_resources(self, pod: Pod, node: str, victims: Sequence[str]) -> bool:
        state = self._state
        found = state.free_resources(node, besides=pod.uid, priority=pod.priority)
        if found is None:
            return False
        free = dict(found)
        for uid in victims:
            for resource, amount in state.requests_used(uid):
                if resource in free:
                    free[resource] += amount
        return not insufficient(free, requests_of(pod))

    def _breaks_gang(self, victims: Sequence[str]) -> bool:
        """Return whether members of a gang would stay or come, fewer than it needs.

        The watch may not show yet that others were evicted, and others may be evicted soon.
        """
        ours, kept = self._preemptions, self._nominated
        gone = ours.evicted.union(kept.victims, victims)
        may_go = gone.union(ours.victims, kept.possible_victims)
        groups = (self._state.group_of(uid) for uid in victims)
        for group in {str(found.key): found for found in groups if found is not None}.values():
            present = group.present()
            bound = [each.uid for each in present if each.node]
            soon = (each.uid for each in present if not each.node)
            is_whole = gone.issuperset(bound) and not any(map(self._ledger.has_reserve, soon))
            left = sum(uid not in may_go for uid in bound) + self._state.ended_of(group)
            if left < group.minimum and not is_whole:
                return True
        return False
