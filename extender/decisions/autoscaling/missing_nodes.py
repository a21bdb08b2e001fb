"""Choose the waiting pods that are examined, and those that get placeholders first (pure)."""

from collections.abc import Collection, Generator
from functools import partial
from math import inf
from typing import Final

from extender.decisions.autoscaling.placeholders import Lacking, Placeholder, placeholders
from extender.decisions.cluster_state import ClusterState
from extender.decisions.pod_records import PodRecord
from extender.decisions.tries import Tries, in_turns
from gpushare.objects.model import Pod
from gpushare.placement.reasons import Reason

EXAMINED: Final = 500  # pods without a placeholder, in one round
AFTER_SECONDS: Final = 5.0  # a pod that waits for less may get what is just becoming free
# A placeholder gives way to that of another pod after that. Cluster Autoscaler gives up a new node
# after 15 minutes (--max-node-provision-time).
KEPT_SECONDS: Final = 1200.0


class MissingNodes:
    """Finds the placeholders that should exist, round by round.

    One of each namespace comes before the second of any other. Among these, one that exists stays
    for KEPT_SECONDS; then come pods that never had one, and then those that had one longest ago.
    """

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._tries: Tries[str] = Tries()
        self._given: dict[str, float] = {}  # when a pod that waits last got one, by uid
        self._turns: dict[str, float] = {}  # when a namespace last got one
        self._wanted: frozenset[str] = frozenset()

    def waits(self, uid: str) -> bool:
        """Return whether a new node may be what a pod lacks."""
        record = self._state.pods.get(uid)
        return record is not None and self._waiting(record) is not None

    def find(self, known: Collection[str]) -> Generator[None, None, tuple[Placeholder, ...]]:
        """Return the placeholders that should exist, in short steps.

        ``known`` are the uids of the pods that have one.
        """
        now, waiting = self._state.clock.monotonic(), dict[str, Pod]()
        for record in list(self._state.pods.pending.values()):
            yield
            pod = self._waiting(record)
            if pod is not None:
                waiting[pod.uid] = pod
        ordered = sorted(waiting.values(), key=_urgency)
        self._given = {uid: at for uid, at in self._given.items() if uid in waiting}
        kept = {uid for uid in (*known, *self._wanted) if uid in waiting}
        for uid in kept:
            self._given.setdefault(uid, now)  # by a former leader
        namespaces = {pod.uid: (pod.metadata.namespace,) for pod in ordered}
        examined = kept | self._tries.choose(namespaces, EXAMINED, now, kept)
        pods = [pod for pod in ordered if pod.uid in examined]
        found = yield from placeholders(self._state, pods, partial(self._in_turns, kept, now))
        self._wanted = frozenset(each.pod.uid for each in found)
        new = [each.pod for each in found if each.pod.uid not in kept]
        self._given |= {pod.uid: now for pod in new}
        names = {pod.metadata.namespace for pod in ordered}
        self._turns = {name: at for name, at in self._turns.items() if name in names}
        self._turns |= {pod.metadata.namespace: now for pod in new}
        return found

    def _in_turns(self, kept: Collection[str], now: float, lacking: list[Lacking]) -> list[Lacking]:
        def own_order(each: Lacking) -> tuple[bool, float]:
            at = self._given.get(each[0].uid, -inf)
            return each[0].uid not in kept or now - at >= KEPT_SECONDS, at

        def turn(each: Lacking, namespace: str) -> tuple[bool, float]:
            may_yield, _ = own_order(each)
            return may_yield, self._turns.get(namespace, -inf)

        lacking = sorted(lacking, key=own_order)
        return in_turns(lacking, lambda each: (each[0].metadata.namespace,), turn)

    def _waiting(self, record: PodRecord) -> Pod | None:
        """Return the pod if the extender has rejected it on all nodes for a while.

        For one with a nominated node room is being made, and a pod with a slot has room. One over
        the quota of its namespace would not get a new node.
        """
        state, pod, asked = self._state, record.pod, record.asked
        if pod is None or asked is None or not asked.reasons or record.request is None:
            return None
        is_left = (
            state.clock.monotonic() - asked.since >= AFTER_SECONDS
            and state.is_plain(pod)
            and not pod.node
            and not pod.metadata.deletion_timestamp
            and not pod.status.nominated_node_name
            and state.preemptions.of(pod.uid) is None
            and state.ledger.slot_of(pod.uid) is None
            and not isinstance(state.quotas.why_not(pod, record.request), Reason)
        )
        return pod if is_left else None


def _urgency(pod: Pod) -> tuple[int, str, str]:
    return -pod.priority, pod.metadata.creation_timestamp or "", pod.uid
