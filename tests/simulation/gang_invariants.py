"""Judge what must hold for gangs, by the API server's objects and what replicas were told."""

from collections.abc import Callable, Sequence
from math import inf
from typing import Final

from extender.decisions.cluster_state import ClusterState
from extender.settings.configuration import GangSettings
from gpushare.contract import LABEL_GANG_MINIMUM, RESOURCE_MEMORY
from gpushare.objects.model import Pod
from gpushare.quota.quotas import Left
from tests.simulation import members
from tests.simulation.loop import VirtualLoop
from tests.simulation.packing import Room, asked, some_fit
from tests.simulation.replica import Replica
from tests.simulation.store import (
    NAMESPACE,
    Change,
    Object,
    Store,
    gang_of,
    is_leaving,
    is_terminal,
    node_of,
    phase_of,
    uid_of,
)

# The API server tells times in whole seconds, and the clocks of replicas differ.
COMPLETE_SECONDS: Final = GangSettings().complete_seconds * 0.98 - 2


class GangInvariants:
    """``broken`` receives violations, ``whole`` has the gangs that are whole.

    A gang is whole from when its minimum is bound until no member is bound. Members that have
    succeeded count, also if they are deleted: a leader that has counted them may count them still.
    """

    def __init__(self, loop: VirtualLoop, store: Store, broken: Callable[[str], None]) -> None:
        self._loop, self._store, self._broken = loop, store, broken
        self.whole: set[str] = set()
        self._begun_at: dict[str, float] = {}  # when the first of the bound members was bound
        self._succeeded: dict[str, set[str]] = {}  # uids by gang
        store.listeners.append(self._changed)

    def binding_begins(self, replica: Replica, pod: Pod, node: str) -> None:
        """Judge the decision to bind a pod, by what the replica was told and keeps."""
        gang, told = members.gang_of(pod), replica.members
        if not gang or gang in self.whole | told.whole or told.is_listing:
            return
        ledger = replica.cluster.ledger
        present, slot = told.present(gang), ledger.slot_of(pod.uid)
        placed = {each.uid for each in present if each.node or ledger.slot_of(each.uid)}
        count, minimum = len(placed | self._succeeded.get(gang, set())), members.minimum_of(pod)
        if count < minimum:
            self._broken(
                f"{replica.machine.name} binds {pod.key} while only {count} of {minimum} members "
                "are bound or have slots"
            )
        if slot is None or slot.node != node:
            self._broken(f"{replica.machine.name} binds {pod.key} to {node}, its slot is {slot}")

    def taken_over(self, replica: Replica, told_since: int) -> None:
        """Judge a replica that is about to decide: gangs that have begun have slots if they fit.

        Nothing is judged if it was told something ``told_since`` it began to plan.
        """
        told, ledger = replica.members, replica.cluster.ledger
        if told_since != replica.knowledge.facts:
            return
        rooms, left = _rooms(replica.cluster.state), replica.cluster.state.quotas.left(NAMESPACE)
        limit = left.units if isinstance(left, Left) else inf
        for gang in sorted(told.gangs() - told.whole - self.whole):
            present = told.present(gang)
            if self._succeeded.get(gang) or not any(pod.node for pod in present):
                continue
            waiting = [pod for pod in present if not (pod.node or ledger.slot_of(pod.uid))]
            missing = members.minimum_of(present[0]) - (len(present) - len(waiting))
            found = (self._store.pod(pod.uid) for pod in waiting)
            amounts = [asked(pod) for pod in found if pod is not None]
            if 0 < missing <= len(amounts) and some_fit(amounts, missing, rooms, limit):
                self._broken(f"{replica.machine.name} takes over without slots for {gang}")

    def would_fit(self, leader: Replica, rooms: Sequence[Room], limit: float) -> list[str]:
        """Return the gangs of which members wait that would fit in these rooms."""
        found = []
        for gang in sorted({gang_of(pod) for pod in self._store.pods.values()} - {""}):
            present = self._present(gang)
            waiting = [asked(pod) for pod in present if not node_of(pod)]
            missing = 1
            if waiting and gang not in leader.members.whole:
                missing = max(1, _minimum(present[0]) - self._ended(gang))
            members = waiting if missing == 1 else list(map(asked, present))
            if waiting and missing <= len(members) and some_fit(members, missing, rooms, limit):
                found.append(gang)
        return found

    def evicted(self, replica: Replica, pod: Object) -> None:
        """Judge the eviction of a member: only of gangs that did not become whole in time."""
        gang, name = gang_of(pod), f"{replica.machine.name} evicts {pod['metadata']['name']}"
        if gang in replica.members.whole:
            self._broken(f"{name} of a gang that was whole")
        lasted = self._loop.now - self._begun_at.get(gang, self._loop.now)
        if lasted < COMPLETE_SECONDS:
            self._broken(f"{name}, whose gang began {lasted:.1f} s ago")

    def why_not_settled(self, leader: Replica, rooms: Sequence[Room], limit: float) -> str:
        """Return what is not settled yet; empty if each gang is whole, or not begun and too large.

        Members of a gang that was whole before are bound one by one, unless the leader does not
        know that it was: then as many as are missing. The quota leaves ``limit`` units.
        """
        for gang in sorted({gang_of(pod) for pod in self._store.pods.values()} - {""}):
            present = self._present(gang)
            bound = [pod for pod in present if node_of(pod)]
            waiting = [asked(pod) for pod in present if not node_of(pod)]
            if bound and gang not in self.whole:
                return f"{gang} is bound in part: {len(bound)} of {_minimum(bound[0])}"
            missing = 1
            if waiting and gang not in leader.members.whole:
                ended = self._ended(gang)
                missing = max(1, _minimum(present[0]) - len(bound) - ended)
            if missing <= len(waiting) and some_fit(waiting, missing, rooms, limit):
                return f"{missing} members of {gang} would fit and are not bound"
        return ""

    def _changed(self, change: Change) -> None:
        pod = change.after or change.before
        if change.kind != "pods" or pod is None or not (gang := gang_of(pod)):
            return
        succeeded = self._succeeded.setdefault(gang, set())
        if phase_of(pod) == "Succeeded":
            succeeded.add(uid_of(pod))
        bound = {uid_of(each) for each in self._present(gang) if node_of(each)}
        if bound:
            self._begun_at.setdefault(gang, self._loop.now)
        else:
            self._begun_at.pop(gang, None)
        if bound and len(bound | succeeded) >= _minimum(pod):
            self.whole.add(gang)
        elif not (bound or succeeded):
            self.whole.discard(gang)

    def _present(self, gang: str) -> list[Object]:
        return [
            pod
            for pod in self._store.pods.values()
            if gang_of(pod) == gang and not (is_terminal(pod) or is_leaving(pod))
        ]

    def _ended(self, gang: str) -> int:
        pods = self._store.pods.values()
        return sum(gang_of(pod) == gang and phase_of(pod) == "Succeeded" for pod in pods)


def _minimum(pod: Object) -> int:
    return int(pod["metadata"]["labels"][LABEL_GANG_MINIMUM])


def _rooms(state: ClusterState) -> list[Room]:
    """Return what is free on each node by a replica's own ledger."""
    found, cooling = [], state.failing_nodes.cooling(state.clock.monotonic())
    for name in state.ledger.nodes():
        account, free = state.ledger.account(name), state.free_resources(name)
        if account is None or free is None or name in state.closed or name in cooling:
            continue
        cards = tuple(max(0, each.free) for each in account.cards if each.card.takes_new)
        found.append(Room(free.get(RESOURCE_MEMORY, 0) // 1000, cards))
    return found
