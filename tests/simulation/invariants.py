"""Judge what must hold at every moment, only by the API server's objects."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from gpushare.contract import (
    ANNOTATION_ALLOCATION,
    ANNOTATION_ASSIGNED,
    ANNOTATION_ASSUME_TIME,
    ANNOTATION_CARD_UNITS,
    ANNOTATION_CARDS,
    ANNOTATION_INDEX,
    ANNOTATION_POD_UNITS,
    RESOURCE_MEMORY,
)
from gpushare.objects.model import Pod
from tests.simulation.gang_invariants import GangInvariants
from tests.simulation.knowledge import Decision, cards_of
from tests.simulation.loop import VirtualLoop
from tests.simulation.nodes import BINDS_LATE
from tests.simulation.packing import Room, asked, some_fit
from tests.simulation.replica import Replica
from tests.simulation.store import (
    Change,
    Object,
    Store,
    gang_of,
    is_leaving,
    is_terminal,
    node_of,
    priority_of,
    uid_of,
)

DECISION_KEYS: Final = frozenset(
    {
        ANNOTATION_ALLOCATION,
        ANNOTATION_ASSIGNED,
        ANNOTATION_ASSUME_TIME,
        ANNOTATION_CARDS,
        ANNOTATION_CARD_UNITS,
        ANNOTATION_INDEX,
        ANNOTATION_POD_UNITS,
    }
)


class Invariants:
    """Collect ``violations`` as texts; the run ends at the first.

    ``preempts``: whether replicas may evict pods for more important ones.
    """

    def __init__(
        self, loop: VirtualLoop, store: Store, replicas: Mapping[str, Replica], quota: float
    ) -> None:
        self.gangs = GangInvariants(loop, store, self.broken)
        self.violations: list[str] = []
        self.preempts = False
        self.bindings = 0
        self._store, self._replicas, self._quota = store, replicas, quota
        self._decisions: dict[str, Decision] = {}
        self._largest: dict[tuple[str, str], int] = {}  # what a card has ever had
        self._hanging: set[str] = set()  # uids that quotas need not count
        store.listeners.append(self._changed)

    def broken(self, text: str) -> None:
        self.violations.append(text)

    def decision_of(self, pod: Pod) -> Decision | None:
        """Return what a pod was given, by its Binding."""
        if not pod.node or pod.is_terminal:
            return None
        units = int(pod.containers[0].limits[RESOURCE_MEMORY])
        return self._decisions.get(pod.uid) or Decision(pod.node, (), units)

    def bound(self, sender: str, pod: Object, binding: dict[str, Any]) -> None:
        """Judge a Binding that is about to be granted."""
        uid, node = uid_of(pod), binding["target"]["name"]
        annotations = binding["metadata"].get("annotations") or {}
        name = f"{pod['metadata']['name']} ({uid}) to {node}"
        self.bindings += 1
        if missing := DECISION_KEYS - annotations.keys():
            self.broken(f"the Binding of {name} has no {', '.join(sorted(missing))}")
            return
        cards = tuple(annotations[ANNOTATION_CARDS].split(","))
        amount = asked(pod)
        decision = Decision(node, cards, amount.units)
        if len(set(cards)) != amount.cards:
            self.broken(f"{name} wants {amount.cards} cards and gets {cards}")
        if uid in self._decisions:
            self.broken(f"{name} is bound for the second time")
        used = self.used()
        for uuid in cards:
            held, has = used[node, uuid], self._largest.get((node, uuid), 0)
            if held + amount.units > has:
                self.broken(
                    f"{uuid} of {node} has {has} units, of which {held} are held, and {sender} "
                    f"binds {name} with {amount.units}"
                )
        total = self.used(besides=self._hanging).total() + amount.total
        if total > self._quota:
            self.broken(f"{sender} binds {name}, and {total} units are more than the quota")
        self._decisions[uid] = decision
        replica = self._replicas[sender]
        at = replica.machine.true_time_of_wall(int(annotations[ANNOTATION_ASSUME_TIME]))
        if why := replica.knowledge.why_not(at, uid, decision):
            self.broken(f"{sender} binds {name} with {decision}, and had been told: {why}")

    def binding_arrives(self, sender: str) -> None:
        """Judge a Binding that reaches the API server, before its answer."""
        for name, other in self._replicas.items():
            if name != sender and other.decides:
                self.broken(f"a Binding of {sender} arrives while {name} decides")

    def answered_bound(self, uid: str, node: str) -> None:
        """Judge an answer to kube-scheduler that a pod is bound."""
        decision, pod = self._decisions.get(uid), self._store.pod(uid)
        if (decision is None or decision.node != node) and (pod is None or node_of(pod) != node):
            self.broken(f"the pod with uid {uid} was said to be bound to {node}, and is not")

    def evicted(self, sender: str, pod: Object) -> None:
        """Judge an eviction: of broken gangs, and of pods that can start nowhere.

        No card is overbooked, and no plugin reports. Where the extender may preempt, a pod may be
        evicted while a more important one waits.
        """
        if self.preempts and self._is_outranked(pod):
            return
        if gang_of(pod):
            self.gangs.evicted(self._replicas[sender], pod)
        elif node_of(pod) != BINDS_LATE or uid_of(pod) in self._decisions:
            self.broken(f"{sender} evicts {pod['metadata']['name']}")

    def _is_outranked(self, pod: Object) -> bool:
        pods = self._store.pods.values()
        waiting = (each for each in pods if not (node_of(each) or is_terminal(each)))
        return any(priority_of(each) > priority_of(pod) for each in waiting)

    def would_fit_when_empty(self, leader: Replica) -> list[str]:
        """Return the pods and gangs that wait and would fit if nobody else were there."""
        rooms = [
            Room(sum(units), tuple(units))
            for item in self._store.nodes.values()
            if (cards := cards_of(item["metadata"]["annotations"]))
            for units in [[card.units for card in cards.values() if card.takes_new]]
        ]
        pods = [
            pod["metadata"]["name"]
            for pod in self._store.pods.values()
            if not (node_of(pod) or is_terminal(pod) or gang_of(pod))
            and some_fit([asked(pod)], 1, rooms, self._quota)
        ]
        return [*pods, *self.gangs.would_fit(leader, rooms, self._quota)]

    def one_decides(self, replicas: Iterable[Replica]) -> None:
        """Judge that at most one replica decides."""
        deciding = [each.machine.name for each in replicas if each.decides]
        if len(deciding) > 1:
            self.broken(f"{' and '.join(deciding)} decide at the same time")

    def used(self, besides: Collection[str] = ()) -> Counter[tuple[str, str]]:
        """Return the units of every card by our Bindings, of pods that have not ended.

        Pods with the uids ``besides`` are left out.
        """
        used: Counter[tuple[str, str]] = Counter()
        for pod in self._store.pods.values():
            decision = self._decisions.get(uid_of(pod))
            is_out = uid_of(pod) in besides
            if decision is not None and node_of(pod) and not (is_terminal(pod) or is_out):
                for uuid in decision.cards:
                    used[decision.node, uuid] += decision.units
        return used

    def could_be_bound(self) -> list[str]:
        """Return the unbound pods without a gang that fit on a node by the API server's objects."""
        rooms = self.rooms()
        return [
            pod["metadata"]["name"]
            for pod in self._store.pods.values()
            if not (node_of(pod) or is_terminal(pod) or gang_of(pod))
            and some_fit([asked(pod)], 1, rooms, self.left())
        ]

    def left(self) -> float:
        """Return how many units of the quota no bound pod uses."""
        pods = self._store.pods.values()
        used = (asked(pod).total for pod in pods if node_of(pod) and not is_terminal(pod))
        return self._quota - sum(used)

    def rooms(self) -> list[Room]:
        """Return what is free on each node by the API server's objects."""
        used, found = self.used(), []
        for node, item in self._store.nodes.items():
            cards = cards_of(item["metadata"]["annotations"])
            free = [card.units - used[node, uuid] for uuid, card in cards.items() if card.takes_new]
            found.append(Room(sum(free), tuple(free)))
        return found

    def why_not_settled(self, replicas: Iterable[Replica]) -> str:
        """Return what is not settled yet; empty if all is."""
        replicas = list(replicas)
        deciding = [each for each in replicas if each.decides]
        if len(deciding) != 1:
            return f"{len(deciding)} replicas decide"
        if waiting := self.could_be_bound():
            return f"{', '.join(waiting)} would fit and are not bound"
        if why := self.gangs.why_not_settled(deciding[0], self.rooms(), self.left()):
            return why
        return next(filter(None, map(self._why_differs, replicas)), "")

    def _why_differs(self, replica: Replica) -> str:
        """Return what a replica knows that is not true; empty if all is."""
        used = {key: units for key, units in self.used().items() if units}
        name, ledger = replica.machine.name, replica.cluster.ledger
        if kept := [each.name for each in ledger.reserves()]:
            return f"{name} keeps reserves for {', '.join(kept)}"
        if kept := [each.owner for each in ledger.kept()]:
            return f"{name} keeps slots for {', '.join(kept)}"
        held: Counter[tuple[str, str]] = Counter()
        for share in ledger.shares():
            for uuid in share.cards or ("?",):
                held[share.node, uuid] += share.units
        if held != used:
            return f"the ledger of {name} has {dict(held)}, the API server {used}"
        if why := self._why_resources_differ(replica):
            return why
        if replica.cluster.compare():
            return f"the ledger of {name} has differed from a fresh count"
        return ""

    def _why_resources_differ(self, replica: Replica) -> str:
        """Return on which node the pods use something else than the replica knows."""
        used: dict[str, Counter[str]] = {}
        for pod in self._store.pods.values():
            if node_of(pod) and not is_terminal(pod):
                here = used.setdefault(node_of(pod), Counter())
                limits = pod["spec"]["containers"][0]["resources"]["limits"]
                here.update({name: 1000 * int(amount) for name, amount in limits.items()})
                here["pods"] += 1000
        known = replica.cluster.state.use
        for node in {*used, *known.nodes()}:
            if (found := known.used(node)) != used.get(node, {}):
                return f"{replica.machine.name} knows that pods use {found} of {node}: {used}"
        return ""

    def _changed(self, change: Change) -> None:
        if change.kind == "nodes" and change.after is not None:
            node = change.after["metadata"]["name"]
            for uuid, card in cards_of(change.after["metadata"]["annotations"]).items():
                self._largest[node, uuid] = max(card.units, self._largest.get((node, uuid), 0))
        self._hanging.update(
            uid_of(pod)
            for pod in self._store.pods.values()
            if is_leaving(pod) and node_of(pod) not in ("", *self._store.nodes)
        )
        if change.kind == "pods" and change.before is not None and change.after is not None:
            before, after = node_of(change.before), node_of(change.after)
            if before and before != after:
                self.broken(f"{change.after['metadata']['name']} was moved")
