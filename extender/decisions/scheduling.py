"""What the extender remembers to choose well, and the choices of each verb (pure).

Nothing of it is needed to be right: after a restart it begins empty.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain

from extender.decisions import prioritize
from extender.decisions.attempts import ALL_AFTER, Offers, how_many
from extender.decisions.filter import Filtered, filter_nodes, minds_other_nodes, refuse_all
from extender.decisions.prioritize import Prioritized
from extender.decisions.soft_taints import SoftTaints
from extender.settings.configuration import Policy
from gpushare.cards.model import Card, Request
from gpushare.cards.placement_policy import CardPolicy, NodePolicy
from gpushare.errors import RequestError
from gpushare.ledger.ledger import Ledger
from gpushare.objects.model import Pod
from gpushare.placement import card_choice as placement
from gpushare.placement import verdict
from gpushare.placement.expected_binds import Expected
from gpushare.placement.rank import Policies
from gpushare.placement.reasons import Reason
from gpushare.placement.verdict import Look, Verdict
from gpushare.placement.verdict_cache import VerdictCache, Verdicts


class Choices:
    """``closed`` are nodes that take nothing new, and why; who changes it tells the ledger too."""

    def __init__(
        self,
        ledger: Ledger,
        unit_mib: int,
        closed: Mapping[str, Reason],
        cooling: Callable[[float], set[str]],
        policy: Policy,
    ) -> None:
        self.soft_taints = SoftTaints()
        self._ledger, self._unit_mib = ledger, unit_mib
        self._closed, self._cooling = closed, cooling
        self._few = policy.candidates
        self.policies = policies(policy)
        self._expected = Expected(ledger.changes.add)
        self._offers = Offers()
        self._index = VerdictCache(ledger.changes, self._names, self._judge)
        self._looks: dict[str, Look] = {}  # as of ``_seen``
        self._seen = 0

    def filter(self, pod: Pod, nodes: Sequence[str], now: float) -> Filtered:
        """The nodes to offer to this pod, which begins a new attempt by this."""
        try:
            request = self.request_of(pod)
        except RequestError as err:
            return refuse_all(nodes, str(err))
        uid = pod.uid
        failed = self._offers.begin(uid, now)
        verdicts = self._verdicts(request, pod, now)
        few = how_many(self._few, failed)
        if few and self._has_preferences(pod, nodes, verdicts):
            few = 0
        found = filter_nodes(
            nodes,
            verdicts,
            few=few,
            last=self._offers.tried(uid),
            cooling=self._cooling(now),
        )
        if found.best and uid:
            self._offers.offered(uid, found.fitting if found.is_short else [found.best], now)
            self._expect(pod, found.best, request, now)
        return found

    def prioritize(self, pod: Pod, nodes: Sequence[str], now: float) -> Prioritized:
        """The nodes that are left in this attempt, best first; may raise RequestError.

        The order decides, unless there is something that kube-scheduler is to weigh it against.
        """
        request = self.request_of(pod)
        verdicts = self._verdicts(request, pod, now)
        tried = self._offers.tried(pod.uid)
        order = prioritize.in_order(nodes, verdicts, tried)
        if order and order[0] in verdicts.fits:
            self._expect(pod, order[0], request, now)
        if self._weighs(pod, nodes, verdicts):
            return Prioritized(order, prioritize.weighing(order, verdicts, tried))
        return Prioritized(order, prioritize.deciding(len(order)))

    def choose(
        self, pod_uid: str, node: str, request: Request, priority: int | None = None
    ) -> tuple[Card, ...] | None:
        """The cards that a pod gets on a node now; None if it has too few with room.

        Those that it was expected on if it can still have them; else such as leave room for what
        else is expected, if there are.
        """
        expected = self._expected.drop(pod_uid)
        account = self._ledger.account(node, besides=pod_uid, priority=priority)
        if account is None:
            return None
        wanted, policy = request.units_per_card, self.policies.card
        if expected is not None and expected.node == node:
            cards = tuple(
                each.card
                for each in account.cards
                if each.card.uuid in expected.cards and each.card.takes_new and each.free >= wanted
            )
            is_same = (expected.units, expected.policy) == (wanted, request.policy)
            if is_same and len(cards) == request.card_count:
                return cards
        taken = self._expected.units(node)
        return placement.choose(account, request, policy, taken) or placement.choose(
            account, request, policy
        )

    def forget(self, pod_uid: str) -> None:
        """The pod is bound or gone."""
        self._expected.drop(pod_uid)
        self._offers.forget(pod_uid)

    def verdict(
        self, node: str, request: Request, pod_uid: str = "", priority: int | None = None
    ) -> Verdict:
        """What is true of one node now, computed afresh.

        A pod's own reserves do not count, nor claims below its ``priority``; None counts them all.
        """
        look = self._look(node, pod_uid, priority)
        return verdict.decide(look, request, self.policies, self._unit_mib, node)

    def request_of(self, pod: Pod) -> Request:
        """What the pod asks for; RequestError for what this configuration can grant nowhere."""
        return verdict.request_of(pod, self.policies)

    def _judge(self, node: str, request: Request) -> Verdict:
        look = self._looks.get(node)
        if look is None:
            look = self._look(node)
            if look.room is not None:  # it may be gone for good
                self._looks[node] = look
        return verdict.decide(look, request, self.policies, self._unit_mib, node)

    def _look(self, node: str, pod_uid: str = "", priority: int | None = None) -> Look:
        account = self._ledger.account(node, besides=pod_uid, priority=priority)
        closed, taken = self._closed.get(node), self._expected.units(node)
        return verdict.look(account, closed, self._unit_mib, taken)

    def _verdicts(self, request: Request, pod: Pod, now: float) -> Verdicts:
        self._expected.expire(now)
        self._expected.drop(pod.uid)
        changes = self._ledger.changes
        changed = changes.since(self._seen)
        if changed is None:
            self._looks.clear()
        else:
            for name in changed:
                self._looks.pop(name, None)
        self._seen = changes.now
        verdicts = self._index.of(request)
        own = {*self._ledger.reserved_on(pod.uid), *self._ledger.outranked(pod.priority)}
        if not own:
            return verdicts
        judged = {node: self.verdict(node, request, pod.uid, pod.priority) for node in own}
        return verdicts.besides(judged)

    def _expect(self, pod: Pod, node: str, request: Request, now: float) -> None:
        if not pod.uid or self._ledger.has_reserve(pod.uid):
            return  # what is held counts already
        account = self._ledger.account(node, priority=pod.priority)
        if account is None:
            return
        cards = placement.choose(account, request, self.policies.card, self._expected.units(node))
        if cards is not None:
            uuids = tuple(card.uuid for card in cards)
            self._expected.expect(pod.uid, node, uuids, request, now)

    def _weighs(self, pod: Pod, nodes: Sequence[str], verdicts: Verdicts) -> bool:
        # What kube-scheduler prefers may fail every time: then each node is to come to its turn.
        if self._offers.failed(pod.uid) >= ALL_AFTER:
            return False
        return not self._few or self._has_preferences(pod, nodes, verdicts)

    def _has_preferences(self, pod: Pod, nodes: Sequence[str], verdicts: Verdicts) -> bool:
        return minds_other_nodes(pod) or self.soft_taints.differ(pod, nodes, verdicts.fits.keys())

    def _names(self) -> Iterator[str]:
        return chain(self._ledger.nodes(), self._closed)


def policies(policy: Policy) -> Policies:
    """What the configuration says, for the pure core."""
    points = tuple((point.utilization, point.score) for point in policy.shape)
    return Policies(NodePolicy(policy.node), CardPolicy(policy.card), points)
