"""Replicas of the extender, a kube-scheduler and gangs before one ``Store``, in virtual time."""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final
from unittest.mock import patch

from extender.decisions.filter import Filtered
from extender.gangs.answers import NotWatchedYet
from extender.settings.configuration import GangSettings
from extender.wire import BindingArgs
from gpushare.annotations import inventory
from gpushare.cards.model import Card
from gpushare.contract import ANNOTATION_INVENTORY, GATE_ADMISSION, RESOURCE_MEMORY
from gpushare.errors import GpushareError
from gpushare.ledger.holds import Slot
from gpushare.objects.model import Node, OwnerReference, Pod
from tests.builders import node
from tests.gangs import member
from tests.simulation import loop as virtual
from tests.simulation.loop import VirtualLoop, virtual_time
from tests.unit.extender.gangs.replica import Replica
from tests.unit.extender.gangs.store import Outcome, Store
from tests.unit.extender.scripted import changed

COMPLETE_SECONDS: Final = 20
LANDED_SECONDS: Final = 3.1  # what was written before may land until then
NOTICED_SECONDS: Final = 0.5  # in which the leader has replaced or given up what was lost
STEP_SECONDS: Final = 0.002  # of a plan: other things happen between any two
ZONE: Final = "zone"


class World:
    """``gangs`` has how each gang was made, ``well`` the nodes as they are without a fault.

    Without a ``leader`` nobody decides, since ``left_at``. ``taken_over`` is called with each new
    leader, and with the gangs that the former one had begun and could complete.
    """

    def __init__(self) -> None:
        self.loop = VirtualLoop()
        self.store = Store(lambda: self.loop.now)
        self.well: dict[str, Node] = {}
        self.gangs: dict[str, dict[str, Any]] = {}
        self.replicas: list[Replica] = []
        self.leader: Replica | None = None
        self.left_at = self.loop.now
        self.errors: list[str] = []
        self.taken_over: Callable[[Replica, Collection[str]], None] = lambda *_: None
        self._disrupted_at = self.loop.now
        self._made = 0
        self._busy: set[str] = set()  # names of pods that kube-scheduler works on
        self._tasks: set[asyncio.Task[None]] = set()
        self.store.listeners.append(self._note_disruption)

    # Time

    def go(self, seconds: float) -> None:
        """Let virtual time pass."""
        self._run(asyncio.sleep(seconds))

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def end(self) -> None:
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        if tasks:  # else ``gather`` takes another loop
            self._run(asyncio.gather(*tasks, return_exceptions=True))
        self.loop.close()

    @property
    def is_busy(self) -> bool:
        return self.leader is None or bool(self._busy or self._tasks)

    def _run(self, work: Any) -> None:
        with virtual_time(self.loop), patch.object(virtual, "COMPUTING_SECONDS", STEP_SECONDS):
            self.loop.run_until_complete(work)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.errors.append(repr(task.exception()))

    # Nodes and pods

    def start(self, nodes: Sequence[tuple[Sequence[int], str]]) -> None:
        """Bring up nodes of these GPUs and zones, and two replicas, of which the first leads."""
        for number, (cards, zone) in enumerate(nodes):
            made = changed(node(f"n{number}", *cards), {"labels": {ZONE: zone}})
            self.well[made.name] = made
            self.store.put(made)
        self._run(self._start())

    async def _start(self) -> None:
        self.replicas = [self._replica(), self._replica()]
        await self.replicas[0].take_over()
        self.leader = self.replicas[0]

    def _replica(self) -> Replica:
        made = Replica(self.store, GangSettings(complete_seconds=COMPLETE_SECONDS))
        made.start()
        return made

    def make_gang(self, amounts: Sequence[int | None], **how: Any) -> str:
        """Make a gang of members that ask for these amounts; return its name."""
        gang = f"g{len(self.gangs)}"
        self.gangs[gang] = how
        for units in amounts:
            self.add_member(gang, units)
        return gang

    def add_member(self, gang: str, units: int | None) -> None:
        how = self.gangs[gang]
        self._made += 1
        made = member(
            f"{gang}-{self._made}",
            gang,
            how["minimum"],
            units=units,
            gates=(GATE_ADMISSION,) if how["is_gated"] else (),
            zone_key=ZONE if how["in_zone"] else None,
            created=f"2026-01-01T00:{self._made // 60:02}:{self._made % 60:02}Z",
        )
        owner = OwnerReference(True, "Job", gang, f"job-{gang}")
        self.store.put(changed(made, {"owner_references": (owner,)}))

    def replace(self, pod: Pod) -> None:
        """Remove a pod, and make another one unless it has succeeded, as a controller does."""
        now = self.store.current(pod)
        if now is not None:
            self.store.remove(now)
            if now.status.phase != "Succeeded":
                self.add_member(gang_of(pod), units_of(pod))

    def replace_on(self, name: str) -> None:
        """Replace the pods of a lost node, as the garbage collector and controllers do."""
        for pod in [each for each in self.store.pods.values() if each.node == name]:
            self.replace(pod)

    def change_node(self, name: str, what: str) -> None:
        well = self.well[name]
        if what == "lost":
            if name in self.store.nodes:
                self.store.remove(self.store.nodes[name])
        elif what == "cordon":
            self.store.put(changed(well, spec={"unschedulable": True}))
        elif what == "ill":
            ill = node(name, *(card.units for card in cards_of(well)), unhealthy=(0,))
            self.store.put(changed(ill, {"labels": well.labels}))
        else:
            if name not in self.store.nodes:
                self.replace_on(name)
            self.store.put(well)

    def members(self, gang: str) -> list[Pod]:
        return [pod for pod in self.store.pods.values() if gang_of(pod) == gang]

    def live(self, gang: str) -> list[Pod]:
        pods = self.members(gang)
        return [pod for pod in pods if not (pod.is_terminal or pod.metadata.deletion_timestamp)]

    def bound(self, gang: str) -> list[Pod]:
        return [pod for pod in self.live(gang) if pod.node]

    def succeeded(self, gang: str) -> int:
        return sum(pod.status.phase == "Succeeded" for pod in self.members(gang))

    def minimum_is_bound(self, gang: str) -> bool:
        return len(self.bound(gang)) + self.succeeded(gang) >= self.gangs[gang]["minimum"]

    def slots(self) -> list[Slot]:
        """The slots that the leader keeps."""
        kept = self.leader.ledger.kept() if self.leader is not None else ()
        return [slot for each in kept for slot in each.slots]

    # kube-scheduler

    def waiting(self) -> list[Pod]:
        """The pods that kube-scheduler can try now."""
        return [
            pod
            for pod in self.store.pods.values()
            if not (pod.node or pod.gates or pod.metadata.deletion_timestamp)
            and pod.metadata.name not in self._busy
        ]

    def attempt(
        self, pod: Pod, hidden: Collection[str], delay: float, outcome: Outcome = "done"
    ) -> None:
        """Try a pod, without the ``hidden`` nodes; bind it after a delay."""
        self._busy.add(pod.metadata.name)
        self.begin(self._attempt(pod, hidden, delay, outcome))

    async def _attempt(
        self, pod: Pod, hidden: Collection[str], delay: float, outcome: Outcome
    ) -> None:
        try:
            with suppress(NotWatchedYet, GpushareError):
                await self._try(pod, hidden, delay, outcome)
        finally:
            self._busy.discard(pod.metadata.name)

    async def _try(self, pod: Pod, hidden: Collection[str], delay: float, outcome: Outcome) -> None:
        selector, leader = pod.spec.node_selector or {}, self.leader
        nodes = [
            each.name
            for each in self.store.nodes.values()
            if each.name not in hidden
            and not each.spec.unschedulable
            and selector.items() <= each.labels.items()
        ]
        if nodes and units_of(pod) is None:  # it does not ask the extender
            await asyncio.sleep(delay)
            self.store.bind(pod, nodes[0], {})
            return
        if not nodes or leader is None:
            return
        nominated = pod.status.nominated_node_name
        found = Filtered()
        if nominated in nodes:
            found = await leader.answers.filter(pod, [nominated])
        if not found.fitting:
            found = await leader.answers.filter(pod, nodes)
        if not found.fitting:
            return
        await asyncio.sleep(delay)
        if leader is self.leader:
            self.store.outcomes[pod.uid] = outcome
            meta = pod.metadata
            args = BindingArgs(meta.name, meta.namespace, pod.uid, found.fitting[0])
            await leader.binder.bind(args)

    # Leaders

    async def fail_over(self, to: int, *, is_killed: bool) -> None:
        """Let the leader stop or die, and replica ``to`` lead."""
        former = self.leader
        assert former is not None
        self.leader, self.left_at = None, self.loop.now
        completable = set() if former.has_lost_room() else former.completable()
        if is_killed:
            former.kill()
            self.replicas[self.replicas.index(former)] = self._replica()
        else:
            former.stop_leading()
        new = self.replicas[to]
        await asyncio.sleep(LANDED_SECONDS)
        if new is former:
            await former.writer.quiet()
        new.set_lag(0.0)
        self.taken_over(new, ())
        await new.take_over()
        is_quiet = self._disrupted_at < self.left_at - NOTICED_SECONDS
        self.taken_over(new, completable if is_quiet else ())
        self.leader = new

    def _note_disruption(self, item: Pod | Node, is_gone: bool) -> None:
        is_binding = isinstance(item, Pod) and item.node and not is_gone
        if not is_binding or item.is_terminal or item.metadata.deletion_timestamp:
            self._disrupted_at = self.loop.now


def gang_of(pod: Pod) -> str:
    return pod.metadata.name.split("-")[0]


def units_of(pod: Pod) -> int | None:
    """What the pod asks for; kube-scheduler binds pods that ask for nothing by itself."""
    found = pod.containers[0].limits.get(RESOURCE_MEMORY)
    return None if found is None else int(found)


def cards_of(well: Node) -> tuple[Card, ...]:
    return inventory.decode(well.annotations[ANNOTATION_INVENTORY]).cards
