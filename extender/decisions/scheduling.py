"""Which nodes and GPUs a pod is offered and given, from all that the extender knows (pure).

What is remembered here only makes decisions better or faster: after a restart it begins empty.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from extender.decisions import prioritize
from extender.decisions.cluster_state import ClusterState
from extender.decisions.filter import Filtered, filter_nodes, prefers_some_nodes, reject_all
from extender.decisions.gangs.gangs import GangPolicy, Gangs
from extender.decisions.gangs.members import Members
from extender.decisions.preemption.nominated import NominatedClaims
from extender.decisions.preemption.proposals import ProposalJudge
from extender.decisions.preemption.records import Preemptions
from extender.decisions.prioritize import Prioritized
from extender.settings.configuration import GangSettings, Policy
from gpushare.annotations.slot_hint import is_nominated
from gpushare.cards.model import Card, Request
from gpushare.cards.placement_policy import CardPolicy, NodePolicy
from gpushare.errors import RequestError
from gpushare.ledger.accounts import NodeAccount
from gpushare.objects.model import Pod
from gpushare.objects.pod_requests import foreign_resources
from gpushare.placement import card_choice, verdict
from gpushare.placement.card_choice import NOTHING, FreeCards
from gpushare.placement.rank import Policies
from gpushare.placement.reasons import COOLING, NO_CARDS, Reason
from gpushare.placement.scarcity_learner import OpenNode, ScarcityLearner
from gpushare.placement.verdict import Look
from gpushare.placement.verdict_cache import Judge, VerdictCache, Verdicts
from gpushare.planning.ask import ZoneRole
from gpushare.quota.reasons import NOT_ADMITTED, OVER_MODEL_QUOTA

MORE_AFTER: Final = 2  # failed attempts until four times as many nodes are offered
ALL_AFTER: Final = 3
_GANGS: Final = GangPolicy()


@dataclass(frozen=True, slots=True)
class Placement:
    """The cards that a pod gets, in index order; ``is_legacy`` as in Inventory."""

    cards: tuple[Card, ...]
    is_legacy: bool


class Scheduling:
    def __init__(self, state: ClusterState, candidates: int, gangs: GangPolicy = _GANGS) -> None:
        self.state = state
        self.gangs = Gangs(state, gangs)
        self.members = Members(self.gangs)
        self.preemptions = Preemptions(state.ending)
        self.nominated = NominatedClaims(state, self.gangs)
        self.proposals = ProposalJudge(state, self.preemptions, self.nominated)
        state.preemptions = self.preemptions
        self._few = candidates
        self._pods, self._ledger = state.pods, state.ledger
        self._cache = VerdictCache(state.ledger.changes, self._names, self._judging)
        self._scarcity = ScarcityLearner()
        self._looks: dict[str, Look] = {}  # as of ``_looks_at``
        self._looks_at = self._uses_at = 0
        self._scarcity_at = -1

    def filter(self, pod: Pod, nodes: Sequence[str]) -> Filtered:
        """Return the nodes to offer to this pod, which begins a new attempt."""
        pods, uid, now = self._pods, pod.metadata.uid, self.state.clock.monotonic()
        try:
            request = pods.request_of(pod)
        except RequestError as err:
            return reject_all(nodes, str(err))
        limit = self.state.quotas.why_not(pod, request)
        if isinstance(limit, Reason):
            return reject_all(nodes, limit.text)
        if self._waits_in_queue(pod):
            return reject_all(nodes, NOT_ADMITTED.text)
        attempts = pods.begin_attempt(uid, now)
        closed = self.state.namespace_use.nodes_with(limit).intersection(nodes) if limit else ()
        if closed:
            nodes = [name for name in nodes if name not in closed]
        verdicts = self._verdicts(request, pod, nodes)
        few = how_many(self._few, attempts.count)
        is_judged = self.state.offered.has_all(foreign_resources(pod))
        if few and (not is_judged or self._has_preferences(pod, nodes, verdicts)):
            few = 0
        found = filter_nodes(
            nodes,
            verdicts,
            few=few,
            last=attempts.tried,
            cooling=self.state.failing_nodes.cooling(now),
            nominated=self.nominated.awaited(pod),
        )
        if closed and not found.is_short:
            found.final |= dict.fromkeys(closed, OVER_MODEL_QUOTA.text)
        if found.best and uid:
            pods.offer(uid, found.fitting if found.is_short else [found.best], now)
            self._expect(pod, found.best, request, now)
        return found

    def prioritize(self, pod: Pod, nodes: Sequence[str]) -> Prioritized:
        """Return the nodes that are left in this attempt, best first; may raise RequestError.

        The order decides, unless there is something that kube-scheduler has to weigh it against.
        """
        now = self.state.clock.monotonic()
        request = self._pods.request_of(pod)
        attempts = self._pods.attempts(pod.uid)
        self._pods.expected.expire(pod.uid, now)
        verdicts, tried = self._verdicts(request, pod, nodes), attempts.tried
        order = prioritize.in_order(nodes, verdicts, tried)
        if order and order[0] in verdicts.fits:
            self._expect(pod, order[0], request, now)
        # What kube-scheduler prefers may fail every time: then each node must have its turn.
        is_weighed = attempts.failed < ALL_AFTER and (
            not self._few or self._has_preferences(pod, nodes, verdicts)
        )
        if is_weighed:
            return Prioritized(order, prioritize.weighing(order, verdicts, tried))
        return Prioritized(order, prioritize.deciding(len(order)))

    def _waits_in_queue(self, pod: Pod) -> bool:
        """Return whether a pod without a gate gets its room in the order of the queue.

        It was created while nothing added the gate, or did not come in time after its gate was
        removed. Where kube-scheduler has nominated it, others were evicted for it.
        """
        state = self.state
        if not (self.gangs.admits and state.namespaces.is_queued(pod.metadata.namespace)):
            return False
        is_theirs = bool(pod.status.nominated_node_name) and not is_nominated(pod)
        return not (is_theirs or self._ledger.has_reserve(pod.uid))

    def forget(self) -> None:
        """Release what was decided here and is not on the API server: the next leader decides."""
        self._ledger.release_all()
        self.gangs.forget_plans()
        self.preemptions.clear()
        self.proposals.evicts = False
        self.nominated.forget()

    def place(self, pod: Pod, node: str, request: Request) -> Placement | Reason:
        """Return the cards that a pod gets on a node now, or why it does not fit there.

        The pod gets the cards of its slot, or those that it was expected on if they are still free;
        else cards that leave room for what else is expected, if there are any.
        """
        state, uid = self.state, pod.metadata.uid
        accounts = self._accounts(node, uid, pod.priority)
        if not accounts or node in state.closed:
            return state.closed.get(node, NO_CARDS)
        account = accounts[-1]
        reason = card_choice.why_unserved(account.inventory, request, state.unit_mib)
        if reason is not None:
            return reason
        cards = self._cards(uid, node, accounts, request)
        if cards is None:
            return card_choice.why_no_set(account, request)
        over = state.quotas.why_not_on(pod, request, cards)
        if over is not None:
            return over
        if state.failing_nodes.is_cooling(node, state.clock.monotonic()):
            return COOLING
        return Placement(cards, account.inventory.is_legacy)

    def _accounts(self, node: str, uid: str, priority: int) -> tuple[NodeAccount, ...]:
        """Return the account of a node in which all claims count, and the one for this priority.

        A pod gets room that is claimed for less important ones only if there is no other. If
        nothing is claimed for these, there is one account; without cards there is no account.
        """
        every, account = (
            self._ledger.account(node, besides=uid, priority=each) for each in (None, priority)
        )
        if every is None or account is None:
            return ()
        return (account,) if every is account else (every, account)

    def _cards(
        self, uid: str, node: str, accounts: Sequence[NodeAccount], request: Request
    ) -> tuple[Card, ...] | None:
        expected, policy = self._pods.expected.drop(uid), self.state.policies.card
        slot, account = self._ledger.slot_of(uid), accounts[-1]
        if slot is not None and slot.node == node:
            return _these(slot.cards, account, request)
        if expected is not None and expected.node == node:
            cards = _these(expected.cards, account, request)
            is_same = (expected.units, expected.policy) == (request.units_per_card, request.policy)
            if is_same and cards is not None:
                return cards
        others = self._pods.expected.units_on(node)
        for each in accounts:
            for units in (others, NOTHING) if others else (NOTHING,):
                found = card_choice.choose(each, request, policy, units)
                if found is not None:
                    return found
        return None

    def _judging(self, request: Request) -> Judge:
        self._drop_changed_looks()
        state, looks, look = self.state, self._looks, self._look
        judge = verdict.judging(request, state.policies, state.unit_mib, state.scarcity)
        return lambda node: judge(looks.get(node) or look(node), node)

    def _look(self, node: str) -> Look:
        look = self._looks.get(node)
        if look is None:
            look = self.state.look(node)
            if look.cards is not None:  # otherwise the node may be deleted for good
                self._looks[node] = look
        return look

    def renewing_scarcity(self) -> Iterator[None]:
        """Learn what has become scarce, and judge all nodes by it, in short steps."""
        self._drop_changed_looks()
        if self._looks_at == self._scarcity_at:
            return
        self._scarcity_at, state = self._looks_at, self.state
        yield from self._scarcity.renewing(state.mix, self._open_nodes())
        if self._scarcity.now is not state.scarcity:
            state.scarcity = self._scarcity.now
            yield from self._cache.renewing()
        yield from self._cache.updating()

    def _open_nodes(self) -> Iterator[OpenNode]:
        for name in list(self._ledger.nodes()):
            cards = self._look(name).cards
            if cards is not None:
                yield self.state.open_node(name, cards)

    def _verdicts(self, request: Request, pod: Pod, nodes: Sequence[str]) -> Verdicts:
        """Return what is known about nodes for a pod that is asked about on ``nodes``.

        Claims for less important pods count if it fits on one of these without their room.
        """
        uid, ledger = pod.metadata.uid, self._ledger
        verdicts = self._cache.of(request)
        priority = pod.priority
        own, outranked = ledger.reserved_on(uid), ledger.outranked(priority)
        for names in (own, outranked):
            if names:
                judged = {node: self.state.verdict(node, request, uid, priority) for node in names}
                verdicts = verdicts.besides(judged)
            if not outranked or any(node in verdicts.fits for node in nodes):
                break
        return verdicts

    def _drop_changed_looks(self) -> None:
        changes, uses = self._ledger.changes, self.state.use.changes
        used = uses.since(self._uses_at)
        for name in self._looks if used is None else used:
            if name in self._looks:
                changes.add(name)  # pods without GPU memory came or went
        self._uses_at = uses.now
        changed = changes.since(self._looks_at)
        if changed is None:
            self._looks.clear()
        else:
            for name in changed:
                self._looks.pop(name, None)
        self._looks_at = changes.now

    def _expect(self, pod: Pod, node: str, request: Request, now: float) -> None:
        uid = pod.metadata.uid
        if not uid or self._ledger.has_reserve(uid):
            return  # what is reserved counts already
        look = self._looks.get(node)
        for account in self._accounts(node, "", pod.priority):
            cards = look.cards if look is not None else None
            if cards is None or cards.account is not account:
                cards = FreeCards(account, self._pods.expected.units_on(node))
            chosen = card_choice.select(cards, request, self.state.policies.card)
            if chosen is not None:
                self._pods.expected.expect(uid, node, chosen, request, now)
                return

    def _has_preferences(self, pod: Pod, nodes: Sequence[str], verdicts: Verdicts) -> bool:
        return prefers_some_nodes(pod) or self.state.soft_taints.differ(
            pod, nodes, verdicts.fits.keys()
        )

    def _names(self) -> list[str]:
        return [*self._ledger.nodes(), *self.state.closed]


def _these(
    uuids: Collection[str], account: NodeAccount, request: Request
) -> tuple[Card, ...] | None:
    """Return exactly these cards in index order; None if the pod does not fit on them."""
    cards = tuple(
        each.card
        for each in account.cards
        if each.card.uuid in uuids and each.card.takes_new and each.free >= request.units_per_card
    )
    return cards if len(cards) == request.card_count else None


def how_many(few: int, failed: int) -> int:
    """Return how many nodes to offer after so many failed attempts; 0 means all."""
    if not few or failed >= ALL_AFTER:
        return 0
    return few * 4 if failed >= MORE_AFTER else few


def policies(policy: Policy) -> Policies:
    """Return the policies of the configuration, for the pure core."""
    points = tuple((point.utilization, point.score) for point in policy.shape)
    return Policies(NodePolicy(policy.node), CardPolicy(policy.card), points)


def gang_policy(settings: GangSettings) -> GangPolicy:
    """Return how gangs are placed, for the pure core."""
    roles = (ZoneRole(each.zone, each.from_cards, each.to_cards) for each in settings.zone_roles)
    return GangPolicy(settings.complete_seconds, tuple(roles))
