"""The live page's feed of the cluster that the extender watches (pure)."""

from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Final

from msgspec.structs import replace

from extender.decisions.cluster_state import ClusterState
from gpushare.answers import inspect
from gpushare.answers.gangs import choose_gangs
from gpushare.answers.pending.sentences import Sentences
from gpushare.errors import RequestError
from gpushare.live_page.feed import MOST_GANGS, NEVER, About, Feed, PendingPod
from gpushare.objects.model import Pod

GANGS_SECONDS: Final = 1.0  # between two looks at all gangs
GANGS_SHARE: Final = 20  # of the time, at most one part in so many for them
PLACES_SECONDS: Final = 3.0  # between two looks at the queue and the quotas
GATED_SECONDS: Final = 10.0  # after which sentences about so many gated pods are written again
GATED_PODS: Final = 500
MOST_COST: Final = 50  # of one update, in sentences: 0.5 to 1.5 s with 1,000 full nodes


class ClusterFeed(Feed):
    """``leads`` returns whether kube-schedulers call this replica: only then are gpushare's reasons
    the latest. ``usage``: what pods really use can be asked.

    A pod's sentence is as of its last change or kube-scheduler's last question about it, so that
    nothing is written and sent for all Pending pods whenever something changes in the cluster. That
    of a member follows its gang, that of a pod for which others are evicted these, and that of a
    gated pod, about which nobody asks, time.
    """

    def __init__(
        self, state: ClusterState, leads: Callable[[], bool], *, usage: bool = False
    ) -> None:
        super().__init__(About(state.unit_mib, usage))
        self._state, self._leads = state, leads
        self._did_lead = leads()
        self._nodes_seen = self._pods_seen = NEVER
        self._sentences = Sentences(state, state.rooms)
        self._owed: set[str] = set()  # pods whose sentence a later update writes
        self._old: set[str] = set()  # pods whose sentence a later update writes again
        self._evicting: dict[str, tuple[object, ...]] = {}  # by the uid of who gets the room
        self._gangs_at = self._gated_at = self._places_at = 0.0

    def update(self) -> Iterator[None]:
        """Take in what has changed in the cluster since the last update, in short steps.

        The next update takes in what an abandoned one left out.
        """
        state, leads = self._state, self._leads()
        ledger, now = state.ledger, state.ledger.changes.now
        names: Iterable[str] | None = ledger.changes.since(self._nodes_seen)
        if names is None:
            with_shares = {share.node for share in ledger.shares()}
            names = {*ledger.nodes(), *state.unreadable, *with_shares, *self.nodes()}
        for name in names:
            yield
            problem = state.unreadable.get(name, "")
            self.put_node(name, inspect.view_node(ledger, name, problem))
        self._nodes_seen, now = now, state.pods.changes.now
        uids: Iterable[str] | None = state.pods.changes.since(self._pods_seen)
        if uids is None:
            uids = [*state.pods.uids(), *self.pods()]
        elif leads != self._did_lead:
            uids = {*uids, *self.pods()}
        self._sentences.renew()
        changed = set(uids)
        for uid in changed:
            yield
            yield from self._renew(uid, leads)
        for uid in self._owed - changed:
            if self._sentences.cost >= MOST_COST:
                break
            yield
            yield from self._renew(uid, leads)
        self._pods_seen, self._did_lead = now, leads
        yield from self._update_gangs()
        yield from self._write_again(leads)

    def _update_gangs(self) -> Iterator[None]:
        """Take in all gangs and evictions, unless that was done just now."""
        clock = self._state.clock
        began = clock.monotonic()
        if began < self._gangs_at:
            return
        gangs, more = yield from choose_gangs(self._state.gangs, "", MOST_GANGS)
        for key in (yield from self.put_gangs(gangs, more)):
            yield
            group = self._state.groups.named(key)
            self._old.update(group.members if group is not None else ())
        yield from self._find_evicting()
        if began >= self._places_at:
            self.put_places((yield from self._state.queue.places()))
            self.put_quotas((yield from self._state.queue.quotas()))
            self._places_at = began + PLACES_SECONDS
        if began >= self._gated_at:
            number = yield from self._find_gated()
            self._gated_at = began + GATED_SECONDS * max(1, number / GATED_PODS)
        ended = clock.monotonic()
        self._gangs_at = ended + max(GANGS_SECONDS, GANGS_SHARE * (ended - began))

    def _find_evicting(self) -> Iterator[None]:
        """Have the sentences written again about pods for which other pods are evicted now."""
        before, self._evicting = self._evicting, {}
        preemptions = self._state.preemptions
        for uid in self.pods() if preemptions.count else ():
            yield
            facts = preemptions.of(uid)
            if facts is not None:
                self._evicting[uid] = facts.lasting
        both = before.keys() | self._evicting.keys()
        self._old.update(uid for uid in both if before.get(uid) != self._evicting.get(uid))

    def _find_gated(self) -> Generator[None, None, int]:
        """Have the sentences about gated pods in no gang written again; return their number."""
        number, groups = 0, self._state.groups
        for uid in list(self._state.pods.gated):
            yield
            if groups.of(uid) is None:
                self._old.add(uid)
                number += 1
        return number

    def _write_again(self, leads: bool) -> Iterator[None]:
        """Write sentences that may be old, as many as this update can pay for."""
        for uid in list(self._old):
            if self._sentences.cost >= MOST_COST:
                return
            yield
            self._old.discard(uid)
            if self._state.pod(uid) is not None:
                yield from self._renew(uid, leads)

    def _renew(self, uid: str, leads: bool) -> Iterator[None]:
        pod = self._state.pod(uid)
        if pod is None or pod.node:
            self._owed.discard(uid)
            self.put_pod(uid, None)
            return
        meta = pod.metadata
        view = PendingPod(
            uid, meta.namespace, meta.name, pod.priority, meta.creation_timestamp or ""
        )
        group = self._state.groups.of(uid)
        view.gang = str(group.key) if group is not None and group.is_ours else ""
        record = self._state.pods.get(uid) if leads else None
        if record is not None and record.asked is not None:
            view.reasons = record.asked.reasons
        condition = pod.condition("PodScheduled")
        was_tried = condition is not None and condition.status == "False"
        unnamed = None
        if self._has_state(pod, view) or view.reasons or was_tried:
            unnamed = yield from self._add_why(pod, view)
        self.put_pod(uid, view, unnamed)

    def _has_state(self, pod: Pod, view: PendingPod) -> bool:
        """Return whether the pod itself is a reason to wait."""
        try:
            request = self._state.request_of(pod)
        except RequestError:
            view.state = "refused"
            return True
        view.units, view.cards = request.units, request.card_count
        if pod.metadata.deletion_timestamp is not None:
            view.state = "ending"
        elif pod.spec.scheduling_gates:
            view.state = "gated"
        return view.state != "waiting"

    def _add_why(self, pod: Pod, view: PendingPod) -> Generator[None, None, PendingPod | None]:
        """Add why the pod is Pending; return a view without names of others, if it has some."""
        if self._sentences.has(pod) or self._sentences.cost < MOST_COST:
            only = pod.metadata.namespace
            view.why, view.by = (yield from self._sentences.of(pod)), "gpushare"
            unnamed = replace(view, why=(yield from self._sentences.of(pod, only)))
            if view.gang:
                view.own = (yield from self._sentences.parts(pod)).own
                unnamed.own = (yield from self._sentences.parts(pod, only)).own
            self._owed.discard(pod.uid)
            return unnamed if unnamed != view else None
        self._owed.add(pod.uid)
        condition = pod.condition("PodScheduled")
        if condition is not None:
            view.why, view.by = condition.message or "", "kube-scheduler"
        return None
