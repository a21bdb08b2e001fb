"""Run a scenario step by step (pure).

A step is all that happens at one time: nodes and namespaces change, pods are deleted, then Pending
and new pods are tried in the queue's order. A pod or gang without room may evict pods of a lower
priority, which end at once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as replaced
from functools import cached_property
from typing import Final

from msgspec.structs import replace

from gpushare.annotations.pod_annotations import asks_for_share
from gpushare.answers.gangs import list_gangs
from gpushare.contract import GATE_ADMISSION
from gpushare.errors import RequestError
from gpushare.groups.group import Group
from gpushare.groups.model import GroupKey
from gpushare.ledger.holds import Slot
from gpushare.objects.model import Pod, PodStatus
from gpushare.placement.rank import Policies
from gpushare.placement.reasons import Reason
from gpushare.placement.verdict import request_of
from gpushare.planning.ask import Ask
from gpushare.process.time_slices import run_all
from gpushare.quota.namespaces import Namespace
from gpushare.quota.order import Given, QueueOrder
from gpushare.quota.quota import NO_QUOTA
from gpusharectl.simulate import left_out, view
from gpusharectl.simulate.gangs import SimulatedGangs, name_of
from gpusharectl.simulate.left_out import CLAIM_SECONDS
from gpusharectl.simulate.other_systems.other_pods import gpus_of
from gpusharectl.simulate.preempting import Preempting
from gpusharectl.simulate.queued import QueuedPod, kind_of
from gpusharectl.simulate.scenario import PodEvent, Scenario
from gpusharectl.simulate.simulated_cluster import SimulatedCluster
from gpusharectl.simulate.why_waits import WhyWaits

NEVER_SIMULATED: Final = (
    "kube-scheduler's own scores and its sampling of nodes",
    "autoscaling",
    "failures after a decision",
)


@dataclass(slots=True)
class _Moment:
    nodes: list[int] = field(default_factory=list)
    namespaces: list[Namespace] = field(default_factory=list)
    created: list[int] = field(default_factory=list)
    deleted: list[int] = field(default_factory=list)


class Run:
    """``steps`` may be taken once. The same scenario and policies always give the same steps."""

    def __init__(self, scenario: Scenario, policies: Policies) -> None:
        self.cluster = SimulatedCluster(scenario.unit_mib, policies)
        self.scenario, self.policies = scenario, policies
        self.gangs = SimulatedGangs(self.cluster, scenario.pod_groups)
        self._preempting = Preempting(self.cluster)
        self._why = WhyWaits(self.cluster, self.gangs)
        self._bound: dict[int, Pod] = {}
        self._queue: dict[int, QueuedPod] = {}
        self._happened: list[view.Happened] = []
        self._touched: set[str] = set()
        self._numbers: dict[str, int] = {}  # of the pods, by uid
        self.passed: set[str] = set()  # pods and gangs that a claim would have helped
        self.lost: list[Pod] = []  # that were evicted, and have no controller
        self._has_evicted = False
        self._seen = {"default"}  # namespaces
        self._limited: set[str] = set()  # namespaces whose pods are not like those of others
        self._moments: dict[int, _Moment] = {}
        for number, event in enumerate(scenario.nodes):
            self._moments.setdefault(event.at, _Moment()).nodes.append(number)
        for each in scenario.namespaces:
            self._moments.setdefault(each.at, _Moment()).namespaces.append(each.namespace)
            self._limited.add(each.namespace.name)
        for number, pod in enumerate(scenario.pods):
            self._moments.setdefault(pod.at, _Moment()).created.append(number)
            if pod.delete is not None:
                self._moments.setdefault(pod.delete, _Moment()).deleted.append(number)

    @cached_property
    def head(self) -> view.Head:
        return view.Head(
            version=view.VERSION,
            unit_mib=self.scenario.unit_mib,
            node_policy=self.policies.node.value,
            card_policy=self.policies.card.value,
            left_out=tuple(self._left_out()),
            not_simulated=NEVER_SIMULATED,
            ignored=tuple(self.scenario.ignored.lines()),
        )

    def _left_out(self) -> Iterator[str]:
        """Yield what is not simulated, and may change what these pods get."""
        yield from left_out.of(self.scenario)
        first = min((event.at for event in self.scenario.pods), default=0)
        if self._moments and max(self._moments) - first >= CLAIM_SECONDS:
            rehearsed = Run(self.scenario, self.policies)
            for _ in rehearsed.times():
                pass
            yield from left_out.claims(rehearsed.passed)

    def undecided(self) -> Iterator[str]:
        """Yield what is not simulated, and could have changed how it ended; after the last step."""
        if self.scenario.has_budgets and self._has_evicted:
            yield left_out.BUDGETS
        if self.scenario.lacks_namespaces:
            yield left_out.QUOTAS
        yield from left_out.claims(self.passed)

    @property
    def unknown(self) -> tuple[str, ...]:
        """Return what is not understood of GPUs; all of it after the last step."""
        return (*self.scenario.unknown.lines(), *self.cluster.unknown.lines())

    @property
    def count(self) -> int:
        return len(self._moments)

    @property
    def waiting(self) -> list[Pod]:
        """Return the Pending pods, by priority and then by age."""
        return [each.event.pod for each in self._in_turn()]

    def pod(self, namespace: str, name: str) -> Pod | None:
        """Return a bound or Pending pod."""
        key = f"{namespace}/{name}"
        waiting = (each.event.pod for each in self._queue.values())
        return self.cluster.pod(key) or next((pod for pod in waiting if pod.key == key), None)

    def steps(self, only: int | None = None) -> Iterator[view.Step]:
        """Yield a step for each time at which something happens; or ``only`` that number."""
        for number, at in enumerate(self.times(), 1):
            if only is None or only == number:
                yield self._view(number, at)

    def times(self) -> Iterator[int]:
        """Yield each time at which something happens, after it; instead of ``steps``."""
        for at in sorted(self._moments):
            self._happen(at, self._moments[at])
            yield at

    def _happen(self, at: int, due: _Moment) -> None:
        self._happened, self._touched, self.gangs.at = [], set(), at
        for namespace in due.namespaces:
            self._limit(at, namespace)
        for each in due.nodes:
            self._change(at, each)
        for each in due.deleted:
            self._delete(at, each)
        # Pods whose GPUs are written nowhere get those that the others leave.
        created = sorted(due.created, key=lambda each: gpus_of(self.scenario.pods[each].pod) > 0)
        fresh = [made for each in created if (made := self._create(each)) is not None]
        may_help = due.nodes or due.deleted or due.namespaces
        due_pods = list(self._queue.values()) if may_help else fresh
        while due_pods:
            # Others may use what victims leave, and the victims' successors what others do not.
            due_pods = list(self._queue.values()) if self._try(at, due_pods) else []
        self._note_passed(at)
        for pod in fresh:
            if pod.number in self._queue:
                self._add("refused" if pod.says else "waits", pod.event.pod, text=pod.says)

    def _view(self, number: int, at: int) -> view.Step:
        self.gangs.renew()
        units, used, largest, fragmentation = self.cluster.shown.sums()
        return view.Step(
            number=number,
            at=at,
            title=self.scenario.titles.get(at, ""),
            unit_mib=self.cluster.unit_mib,
            units=units,
            used=used,
            largest_free=largest,
            fragmentation=fragmentation,
            happened=tuple(self._happened),
            nodes=self.cluster.shown.nodes(self._touched),
            waiting=self._why.views(self._in_turn()),
            gangs=tuple(run_all(list_gangs(self.gangs)).gangs),
            quotas=tuple(self._quotas()),
        )

    def _quotas(self) -> Iterator[view.QuotaUse]:
        for each in sorted(self.cluster.namespaces, key=lambda each: each.name):
            quota, used = each.quota or NO_QUOTA, self.cluster.namespace_use.used(each.name)
            if quota.units is not None:
                yield view.QuotaUse(each.name, "", used.total(), quota.units)
            for model, most in quota.models.items():
                yield view.QuotaUse(each.name, model, used[model], most)

    def _limit(self, at: int, namespace: Namespace) -> None:
        text = "changes" if namespace.name in self._seen else "is added"
        self._seen.add(namespace.name)
        self.cluster.namespaces.put(namespace)
        if at:
            self._happened.append(view.Happened("namespace", namespace.name, text=text))

    def _change(self, at: int, number: int) -> None:
        event = self.scenario.nodes[number]
        node = event.node
        text = "changes" if self.cluster.knows(node.name) else "is added"
        self.cluster.put_node(node, event.gpus)
        if at:
            self._touched.add(node.name)
            self._happened.append(view.Happened("node", node=node.name, text=text))

    def _create(self, number: int) -> QueuedPod | None:
        """Create a pod; None if it is bound already."""
        event = self.scenario.pods[number]
        pod = event.pod
        self._numbers[pod.uid] = number
        self._seen.add(pod.metadata.namespace)
        self.cluster.count(pod)
        if pod.node:
            self.cluster.bind(pod)
            self._bound[number] = pod
            self.gangs.put(pod)
            if self.cluster.units_of(pod):
                known = self.cluster.knows(pod.node)
                self._add("bound", pod, text="" if known else "its node does not exist")
            return None
        return self._put(number, event)

    def _put(self, number: int, event: PodEvent) -> QueuedPod:
        """Put a pod into the queue."""
        pod = event.pod
        namespace = pod.metadata.namespace
        kind = kind_of(pod, namespace if namespace in self._limited else "")
        made = self._queue[number] = QueuedPod(event, number, kind)
        self.gangs.put(pod)
        try:
            if asks_for_share(pod):
                request_of(pod, self.policies)
        except RequestError as err:
            made.says = str(err)
        if gates := [gate for gate in pod.gates if gate != GATE_ADMISSION]:
            made.says = f"kube-scheduler ignores it until this gate is removed: {gates[0]}"
        return made

    def _delete(self, at: int, number: int) -> None:
        waiting = self._queue.pop(number, None)
        self.gangs.forget(self.scenario.pods[number].pod)
        if waiting is not None:
            self._add("gave-up", waiting.event.pod, waited=at - waiting.event.at)
            return
        pod = self._bound.pop(number, None)
        if pod is None:
            return  # it was evicted
        if self.cluster.units_of(pod):
            self._add("deleted", pod)
        self.cluster.remove(pod)

    def _try(self, at: int, pods: list[QueuedPod]) -> bool:
        """Place what has room, in order; return whether pods were evicted for it."""
        refused: set[bytes] = set()  # within one step free units only decrease
        has_evicted = False
        self._preempting.failed = 0
        self.cluster.learn()
        order = self._order(pods)
        while (found := order.pop()) is not None:
            each = found[1]
            if isinstance(each, Group):
                has_evicted |= self._start(at, each)
                continue
            if each.says or each.kind in refused or gpus_of(each.event.pod):
                continue
            bound = self.cluster.place(each.event.pod)
            if bound is not None:
                self._place(at, each, bound)
            elif self._preempt(at, Ask(each.event.pod.uid, (each.event.pod,), 1)):
                has_evicted = True
            else:
                refused.add(each.kind)
        return has_evicted

    def _order(self, pods: list[QueuedPod]) -> QueueOrder[QueuedPod | Group]:
        order, gangs = QueueOrder[QueuedPod | Group]("fair", self._share), set[GroupKey]()
        for each in sorted(pods, key=lambda each: each.number):
            group = self.gangs.of(each.event.pod)
            if group is None:
                order.put(each.standing, each)
            elif group.key not in gangs:
                gangs.add(group.key)
                begun = Given.PART if 0 < group.bound < group.minimum else Given.NOTHING
                order.put(each.standing._replace(priority=group.priority, given=begun), group)
        return order

    def _share(self, namespace: str) -> float:
        """Return what the order goes by: pods of other namespaces do not wait for their turn."""
        is_queued = self.cluster.namespaces.is_queued(namespace)
        return self.cluster.quotas.share(namespace) if is_queued else 0.0

    def _start(self, at: int, group: Group) -> bool:
        """Place the members of a gang that have room, unless that is less than its minimum.

        Return whether pods were evicted for it.
        """
        slots = self.gangs.plan(group)
        self._use(at, slots)
        ask = self.gangs.ask(group) if not slots else None
        return ask is not None and ask.least > 0 and self._preempt(at, ask)

    def _use(self, at: int, slots: Sequence[Slot]) -> None:
        for slot in slots:
            each = self._queue[self._numbers[slot.pod_uid]]
            bound = self.cluster.place_in(each.event.pod, slot)
            self._place(at, each, bound)
            self.gangs.put(bound)

    def _preempt(self, at: int, ask: Ask) -> bool:
        """Evict pods of a lower priority, if that makes room; return whether it does."""
        found = self._preempting.find(ask)
        if found is None:
            return False
        group = self.gangs.of(ask.members[0])
        owner = self._name_of(ask.members[0])
        gone = [self._evict(pod, owner) for pod in found.victims]
        for number in gone:  # only now: a gang that is evicted as a whole starts anew
            event = self.scenario.pods[number]
            if not event.returns:
                self.lost.append(event.pod)
            else:
                spec = replace(event.pod.spec, node_name=None)
                again = replace(event.pod, spec=spec, status=PodStatus())
                self._put(number, replaced(event, at=at, pod=again))
        if group is not None:
            self.cluster.unknown.add("gangs evict pods only with preemption.enabled", owner)
        self._use(at, found.plan.slots)
        return True

    def _evict(self, pod: Pod, owner: str) -> int:
        self._has_evicted = True
        number = self._numbers[pod.uid]
        bound = self._bound.pop(number)
        is_last = "" if self.scenario.pods[number].returns else "; no controller creates it again"
        self._add("evicted", bound, text=f"{owner}{is_last}")
        self.gangs.forget(bound)
        self.cluster.remove(bound)
        return number

    def _note_passed(self, at: int) -> None:
        """Note the first that waits if it has waited for long, and later pods were placed now."""
        if at < CLAIM_SECONDS:
            return
        may_claim = (each for each in self._in_turn() if not gpus_of(each.event.pod))
        waiting = (each for each in may_claim if not (each.says or self._is_over(each)))
        first = next(waiting, None)
        if first is None or at - first.event.at < CLAIM_SECONDS:
            return
        ages = (self.scenario.pods[self._numbers[f"{e.namespace}/{e.name}"]] for e in self._placed)
        if any((-e.pod.priority, e.at) > (-first.event.pod.priority, first.event.at) for e in ages):
            self.passed.add(self._name_of(first.event.pod))

    def _name_of(self, pod: Pod) -> str:
        """Return the name of a pod's gang; without one, its own."""
        group = self.gangs.of(pod)
        if group is not None:
            return name_of(group)
        return view.short(pod.metadata.namespace, pod.metadata.name)

    @property
    def _placed(self) -> Iterator[view.Happened]:
        return (each for each in self._happened if each.what == "placed" and each.units)

    def _is_over(self, each: QueuedPod) -> bool:
        """Return whether the quota leaves nothing for a pod or its gang: it claims nothing then."""
        pod = each.event.pod
        group = self.gangs.of(pod)
        if group is not None:
            return self.gangs.why_over(group) is not None
        full = self.cluster.quotas.why_not(pod, self.cluster.request_of(pod))
        return isinstance(full, Reason)

    def _place(self, at: int, pod: QueuedPod, bound: Pod) -> None:
        del self._queue[pod.number]
        self._bound[pod.number] = bound
        self._add("placed", bound, waited=at - pod.event.at)

    def _add(self, what: str, pod: Pod, *, waited: int = 0, text: str = "") -> None:
        if pod.node:
            self._touched.add(pod.node)
        group = self.gangs.of(pod)
        self._happened.append(
            view.Happened(
                what,
                pod.metadata.namespace,
                pod.metadata.name,
                node=pod.node,
                cards=self.cluster.cards_of(pod),
                units=self.cluster.units_of(pod),
                waited=waited,
                text=text,
                gang=group.key.name if group is not None else "",
            )
        )

    def _in_turn(self) -> list[QueuedPod]:
        return sorted(self._queue.values(), key=lambda each: each.standing.age)
