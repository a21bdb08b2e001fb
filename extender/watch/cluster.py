"""Handles the watches of pods and nodes: feeds the ledger and the records."""

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final

from extender.decisions.autoscaling.placeholders import is_placeholder
from extender.decisions.callers import DEFAULT_SCHEDULER
from extender.decisions.cluster_state import ClusterState
from extender.decisions.gangs.facts import GangViews
from extender.decisions.pod_records import PodRecord
from extender.decisions.queue.facts import QueueViews
from extender.decisions.queue.waiting_pods import WaitingPods
from extender.decisions.scheduling import Scheduling, gang_policy, policies
from extender.metrics.collectors import Figures, by_reason
from extender.settings.configuration import GangSettings, Policy
from extender.watch.audit import Audit, Difference, Overbooking
from extender.watch.events import Notice, Reporter
from extender.watch.grace import Grace
from extender.watch.live_pods import PodUse
from gpushare.annotations import edited_decisions, pod_annotations
from gpushare.annotations.slot_hint import is_nominated
from gpushare.answers.gangs import Phase
from gpushare.answers.pending.sentences import Sentences
from gpushare.clock import Clock
from gpushare.errors import RequestError
from gpushare.groups.reasons import TEXTS as OF_GANGS
from gpushare.objects.model import Node, Pod
from gpushare.objects.pod_requests import resources_used
from gpushare.placement import verdict
from gpushare.process.time_slices import in_slices
from gpushare.quota.quota import Quota

log = logging.getLogger(__name__)

AUDIT_SECONDS: Final = 0.1  # between two slices of a few milliseconds
REPORT_SECONDS: Final = 1.0
REPORTED_AT_ONCE: Final = 5  # pending pods that get an Event per REPORT_SECONDS
EXAMINED_AT_ONCE: Final = 100  # pending pods: of a gang only one gets an Event
MOST_COST: Final = 50  # of these, in sentences: the others get their Events later

_POLICY: Final = Policy()
_GANGS: Final = GangSettings()


class ClusterWatch:
    """Every change of the ledger that comes from the API server is made here.

    ``notice`` is called once for everything that becomes an Event. ``schedulers`` are those that
    call the extender, by configuration.
    """

    def __init__(
        self,
        unit_mib: int,
        notice: Notice,
        clock: Clock,
        policy: Policy = _POLICY,
        gangs: GangSettings = _GANGS,
        *,
        schedulers: Iterable[str] = (DEFAULT_SCHEDULER,),
    ) -> None:
        self.state = ClusterState(unit_mib, policies(policy), clock, schedulers)
        self.ledger, self.pods = self.state.ledger, self.state.pods
        self.scheduling = Scheduling(self.state, policy.candidates, gang_policy(gangs))
        self.grace = Grace(self.scheduling)
        self.audit = Audit(self.ledger, self.pods, self.state.use, clock)
        self.overbooking = Overbooking(self.ledger)
        self.differences = 0
        self.state.zone_roles = gang_policy(gangs).roles
        self.state.gangs = GangViews(self.state, self.scheduling.gangs)
        self.state.queue = QueueViews(self.scheduling.gangs, WaitingPods(self.state))
        self._reporter = Reporter(notice)
        self._sentences = Sentences(self.state, self.state.rooms)
        self._reported_version, self._reported_quotas = 0, dict[str, Quota | None]()
        self._has_listed_pods = False

    async def run(self) -> None:
        """Audit the ledger, expire plans and report to pending pods, until cancelled."""
        clock = self.state.clock
        report_at = clock.monotonic() + REPORT_SECONDS
        while True:
            await asyncio.sleep(AUDIT_SECONDS)
            self.overbooking.check()
            if found := self.audit.step():
                self._report_differences(found)
            if clock.monotonic() >= report_at:
                report_at = clock.monotonic() + REPORT_SECONDS
                self.expire_plans()
                self.scheduling.nominated.renew()
                await in_slices(self.learning())
                if self.state.namespaces.version:  # some are limited or queued
                    await in_slices(self.state.namespace_use.renewing())
                await in_slices(self.report_pending())

    def learning(self) -> Iterator[None]:
        """Learn what is scarce, in short steps, once all pods are known: they do not come now."""
        if self._has_listed_pods:
            yield from self.scheduling.renewing_scarcity()

    def replacing_pods(self, items: Sequence[Pod | PodUse]) -> Iterator[None]:
        """Take a list of all pods, pod by pod; other work may run between any two steps."""
        listed: set[str] = set()
        for pod in items:
            listed.add(pod.uid)
            yield
        known = self.pods.watched_uids, self.state.groups.uids, self.state.use.uids
        for uids in (*known, self.state.placeholders.keys):
            for uid in [uid for uid in uids() if uid not in listed]:
                self._forget(uid)
                yield
        for pod in items:
            if self.state.use.node_of(pod.uid) not in {"", pod.node}:
                # A consistent list is the API server's state: etcd was restored from before the
                # binding. An event like this would only be older than what is known.
                self._forget(pod.uid)
            if isinstance(pod, PodUse):
                self.use_changed(pod)
            else:
                self.pod_changed(pod)
            yield
        self._has_listed_pods = True
        self.audit.begin()

    def pod_changed(self, pod: Pod) -> None:
        """Take a pod about which gpushare decides, or its new version."""
        self.state.placeholders.pop(pod.uid, None)
        if is_placeholder(pod):
            self._forget(pod.uid)  # anybody may give a pod that waits this label
            if pod.metadata.namespace == self.state.own_namespace:
                self.state.placeholders[pod.uid] = pod
        else:
            self._decided_changed(pod)

    def _decided_changed(self, pod: Pod) -> None:
        uid, node = pod.metadata.uid, pod.spec.node_name or ""
        if pod.is_terminal:
            self._forget(uid)
            return
        if self.state.use.node_of(uid) not in {"", node}:
            return  # no pod is ever unbound: this version is older than the known one
        before = self.pods.pod(uid)
        if before is None and not pod_annotations.asks_for_share(pod):
            self._member_changed(pod)
            return
        inventory = self.ledger.inventory(node)
        is_legacy = inventory is not None and inventory.is_legacy
        pod, is_edited = edited_decisions.counted_as(before, pod, is_legacy=is_legacy)
        is_repeated = before is not None and _is_same(before, pod)
        # A repeated version is compared first: counting it would hide a difference.
        difference = self.audit.compare(uid) if is_repeated else None
        if difference is not None:
            self._report_differences([difference])
        if is_repeated and difference is None and not is_edited:
            return
        record = self.pods.update(pod)
        self._learn(before, pod)
        if node:
            self.state.use.put(uid, node, resources_used(pod))
        if is_edited and uid not in self.pods.edited:
            self.pods.edited[uid] = record
            self._reporter.edited(pod)
        if node and pod.has_started:
            self.state.failing_nodes.started(uid, self.state.clock.monotonic())
        if node:
            self._count(record, pod)
            self.scheduling.nominated.pod_gone(uid)
        else:
            self.scheduling.nominated.pod_changed(pod)
        self.state.ending.put(pod)
        self._nominated_changed(pod)
        self.scheduling.gangs.member_changed(pod)

    def _learn(self, before: Pod | None, pod: Pod) -> None:
        """Count what a pod requests when it is first seen."""
        if before is None:
            with suppress(RequestError):  # filter says what is wrong
                self.state.mix.add(self.pods.request_of(pod), pod.metadata.namespace)

    def use_changed(self, pod: PodUse) -> None:
        """Take a pod about which gpushare does not decide, or does no longer."""
        use, uid = self.state.use, pod.uid
        if pod.is_terminal:
            self._forget(uid)
        elif use.node_of(uid) not in {"", pod.node}:
            return  # no pod is ever unbound: this version is older than the known one
        elif not pod.node:
            self._forget(uid)
        else:
            use.put(uid, pod.node, pod.requests, is_other=pod.is_other)
            self.scheduling.gangs.member_gone(uid)
            self.ledger.drop_slot(uid)

    def _member_changed(self, pod: Pod) -> None:
        """Take a member of a gang, or a pod with our gate, that requests no GPU memory."""
        if pod.node:
            self.state.use.put(pod.uid, pod.node, resources_used(pod))
        self.state.ending.put(pod)
        self._nominated_changed(pod)
        self.scheduling.gangs.member_changed(pod)
        if pod.has_our_gate and self.state.groups.of(pod.uid) is None:
            self.state.gated_without_need[pod.uid] = pod
        else:
            self.state.gated_without_need.pop(pod.uid, None)

    def _nominated_changed(self, pod: Pod) -> None:
        if is_nominated(pod):
            self.state.nominated[pod.uid] = pod
        else:
            self.state.nominated.pop(pod.uid, None)

    def pod_failed(self, pod: Pod) -> None:
        self.state.failing_nodes.failed(pod, self.state.clock.monotonic())

    def pod_deleted(self, pod: Pod | PodUse) -> None:
        self._forget(pod.uid)

    def replacing_nodes(self, items: list[Node]) -> Iterator[None]:
        listed = {node.name for node in items}
        for name in [name for name in self.state.nodes if name not in listed]:
            self._drop_node(name)
            yield
        for node in items:
            self.node_changed(node)
            yield
        self.audit.begin()

    def node_changed(self, node: Node) -> None:
        node = self.state.profile_rules.seen(node)
        state, name = self.state, node.name
        before = state.nodes.get(name)
        state.put_node(node)
        state.soft_taints.put(node)
        if before is None or not _is_alike(before, node):
            state.use.changes.add(name)
        if before is not None and _same_cards(before, node):
            return
        found, wrong, why = verdict.cards_of(node, state.unit_mib)
        if why is not None and wrong and state.unreadable.get(name) != wrong:
            self._reporter.unreadable(node, wrong, why)
        self._open(name)
        if why is not None:
            state.closed[name] = why
        if wrong:
            state.unreadable[name] = wrong
        self.ledger.set_inventory(name, found)
        self._recount(name)

    def node_deleted(self, node: Node) -> None:
        self._drop_node(node.name)

    def report_pending(self) -> Iterator[None]:
        """Write an Event on the next few pending pods whose reasons have changed, in short steps.

        The reasons of kube-scheduler's last question decide whether, so that an amount that changes
        all the time writes no Events; without a question, that it rejects the pod itself, because
        of nodes' sums. The pod's namespace can read it: no other pods are named.
        """
        pods, now = self.pods, self.state.clock.monotonic()
        self._sentences.renew()
        yield from self._report_changed_quotas()
        reported = 0
        for _ in range(EXAMINED_AT_ONCE):
            if reported == REPORTED_AT_ONCE or self._sentences.cost >= MOST_COST:
                return
            record = next(pods.take_unreported(now, 1), None)
            if record is None:
                return
            if record.pod is None:
                pods.forget(record.uid)  # kube-scheduler asked while it was deleted
                continue
            yield
            if record.pod.node or not self.scheduling.gangs.speaks(record.pod):
                continue  # the former: kube-scheduler asked about an older version
            reported += 1
            why = yield from self._sentences.of(record.pod, only=record.pod.metadata.namespace)
            pod = record.pod
            if pods.get(record.uid) is record and not pod.node:
                self._reporter.pending(pod, why)

    def _report_changed_quotas(self) -> Iterator[None]:
        """Have the waiting pods of a namespace reported again whose quota is another one.

        Nothing else changes what the last Event says of it as soon.
        """
        namespaces, before = self.state.namespaces, self._reported_quotas
        if namespaces.version == self._reported_version:
            return
        self._reported_version = namespaces.version
        self._reported_quotas = {each.name: each.quota for each in namespaces}
        names = {*before, *self._reported_quotas}
        changed = {n for n in names if before.get(n) != self._reported_quotas.get(n)}
        for record in [*self.pods.pending.values(), *self.pods.gated.values()]:
            yield
            if record.pod is not None and record.pod.metadata.namespace in changed:
                self.pods.report_again(record.uid, at_once=False)

    def expire_plans(self) -> None:
        now = self.state.clock.monotonic()
        self.state.note_late()
        for node in self.state.failing_nodes.ended(now):
            self.state.resource_changes.add(node)  # no event shows that it takes pods again
        for kept in self.ledger.expire(now):
            what, nodes = type(kept).__name__.lower(), {slot.node for slot in kept.slots}
            self.state.freed[what] += len(nodes)
            extra = {"what": what, "owner": kept.owner, "nodes": len(nodes)}
            log.info("units became free", extra=extra)

    def compare(self) -> int:
        """Compare the whole ledger at once; return how many differences there have ever been."""
        self._report_differences(self.audit.whole())
        return self.differences

    def figures(self) -> Figures:
        state, pods, found = self.state, self.pods, self.state.gangs.figures()
        kept = [type(each).__name__.lower() for each in self.ledger.kept()]
        cooling = state.failing_nodes.cooling(state.clock.monotonic())
        return {
            "gpushare_unplaced_pods": len(pods.unplaced),
            "gpushare_reserves": sum(1 for _ in self.ledger.reserves()),
            "gpushare_unreadable_inventories": len(state.unreadable),
            "gpushare_changed_decisions": len(pods.edited),
            "gpushare_extender_cooling_nodes": len(cooling),
            "gpushare_over_cards": self.overbooking.times,
            "gpushare_extender_waiting_pods": pods.rejected,
            "gpushare_extender_waiting_pods_by_reason": by_reason(pods.reasons, OF_GANGS),
            "gpushare_extender_pending_pods": len(pods.pending),
            "gpushare_extender_pending_least_units": pods.least_pending_units(state.callers),
            "gpushare_gangs": {each.value: found.phases.get(each.value, 0) for each in Phase},
            "gpushare_gang_waiting_members": found.waiting_members,
            "gpushare_gang_longest_incomplete_seconds": found.longest_incomplete,
            "gpushare_plans": {what: kept.count(what) for what in ("hold", "claim")},
            "gpushare_queue_claimed_idle_units": state.head_claims.idle_units(),
            "gpushare_extender_preemptors": state.preemptions.count,
            "gpushare_units_freed_silently": {
                what: state.freed[what] for what in ("reserve", "hold", "claim")
            },
            "gpushare_ledger_differences": self.differences,
            "gpushare_ledger_audits": self.audit.rounds,
            "gpushare_ledger_audit_longest_pause_seconds": self.audit.longest_pause,
        }

    def _report_differences(self, found: Iterable[Difference]) -> None:
        for each in found:
            self.differences += 1
            node = self.state.nodes.get(each.node)
            self._reporter.difference(each, self.pods.pod(each.pod_uid), node)

    def _count(self, record: PodRecord, pod: Pod) -> None:
        uid, ledger, pods = record.uid, self.ledger, self.pods
        inventory = ledger.inventory(pod.node)
        share = pod_annotations.share_of(pod, inventory, record.units)
        if share is None:
            ledger.remove_share(uid)
            return
        if ledger.share(uid) != share or ledger.has_reserve(uid):
            ledger.put_share(share)
        if share.cards:
            pods.unplaced.pop(uid, None)
            pods.unplaced_reported.pop(uid, None)
            return
        pods.unplaced[uid] = record
        # A node that is not known yet says nothing about the pod.
        if share.node in self.state.nodes and uid not in pods.unplaced_reported:
            pods.unplaced_reported[uid] = record
            unit = inventory.unit_mib if inventory is not None else self.state.unit_mib
            self._reporter.unplaced(pod, share, unit)

    def _recount(self, node: str) -> None:
        for record in self.pods.on_node(node):
            if record.pod is not None:
                self._count(record, record.pod)

    def _forget(self, uid: str) -> None:
        self.pods.forget(uid)
        self.state.use.remove(uid)
        self.ledger.remove_share(uid)
        self.scheduling.gangs.member_gone(uid)
        self.state.gated_without_need.pop(uid, None)
        self.state.placeholders.pop(uid, None)
        self.state.nominated.pop(uid, None)
        self.state.ending.drop(uid)
        self.scheduling.nominated.pod_gone(uid)

    def _open(self, node: str) -> None:
        self.state.unreadable.pop(node, None)
        self.state.closed.pop(node, None)

    def _drop_node(self, name: str) -> None:
        self.state.drop_node(name)
        self.state.use.changes.add(name)
        self.state.soft_taints.drop(name)
        self._open(name)
        self.ledger.set_inventory(name, None)
        self._recount(name)


def _is_same(before: Pod, after: Pod) -> bool:
    version = after.metadata.resource_version
    return bool(version) and version == before.metadata.resource_version


def _is_alike(before: Node, after: Node) -> bool:
    """Return whether the same pods may run there; a kubelet's heartbeat changes nothing."""
    return (
        before.spec == after.spec
        and before.status == after.status
        and before.labels == after.labels
        and before.annotations == after.annotations
    )


def _same_cards(before: Node, after: Node) -> bool:
    return before.annotations == after.annotations and before.capacity == after.capacity


class PodHandler:
    def __init__(self, cluster: ClusterWatch) -> None:
        self.replaced = cluster.replacing_pods
        self.deleted = cluster.pod_deleted
        self._cluster = cluster

    def changed(self, pod: Pod | PodUse) -> None:
        if isinstance(pod, PodUse):
            self._cluster.use_changed(pod)
        else:
            self._cluster.pod_changed(pod)


class FailedPodHandler:
    """Hands pods that end as Failed to the cluster; those that had ended before do not count."""

    def __init__(self, cluster: ClusterWatch) -> None:
        self.changed = cluster.pod_failed

    def replaced(self, _: list[Pod]) -> None: ...

    def deleted(self, _: Pod) -> None: ...


class NodeHandler:
    def __init__(self, cluster: ClusterWatch) -> None:
        self.replaced = cluster.replacing_nodes
        self.changed = cluster.node_changed
        self.deleted = cluster.node_deleted
