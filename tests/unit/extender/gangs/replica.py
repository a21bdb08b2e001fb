"""A replica of the extender before a ``Store``: its watches lag, and it leads or not."""

import asyncio
import math

from extender.binding.binder import Binder
from extender.binding.fenced_writer import Writer
from extender.binding.unknown_outcomes import Reconciler
from extender.gangs.answers import GangAnswers
from extender.gangs.duties import GangDuties
from extender.gangs.nominations import StaleNominations
from extender.gangs.planning import GangPlanning
from extender.gangs.pokes import Pokes
from extender.gangs.rights import PatchRight
from extender.gangs.wake_ups import WakeUps
from extender.gates.releaser import Releaser
from extender.preemption.budgets import BudgetWatch
from extender.preemption.evictor import Evictor
from extender.queue.admission import Admission
from extender.settings.configuration import GangSettings, Policy, PreemptionSettings
from extender.watch.cluster import ClusterWatch
from gpushare.objects.model import Node
from gpushare.preemption.model import Rules
from tests.unit.extender.gangs.store import Item, Store


class LoopClock:
    def monotonic(self) -> float:
        return asyncio.get_event_loop().time()

    def wall_ns(self) -> int:
        return int(self.monotonic() * 1e9)


class Replica:
    """``lag`` is how long its watches take, in seconds; endless while they are silent.

    It evicts pods for others if it has settings for ``preemption``; ``events`` are those it writes.
    """

    def __init__(
        self, store: Store, gangs: GangSettings, preemption: PreemptionSettings | None = None
    ) -> None:
        self.store, self.lag, self.leads = store, 0.0, False
        self.events: list[tuple[str, str, str]] = []
        clock = LoopClock()
        self.cluster = ClusterWatch(1, self._notice, clock, Policy(candidates=8), gangs)
        scheduling = self.cluster.scheduling
        self.gangs, self.ledger = scheduling.gangs, self.cluster.ledger
        self.groups = self.cluster.state.groups
        self.writer = writer = Writer(store, clock, lambda: math.inf if self.leads else -math.inf)
        self.planning = GangPlanning(scheduling)
        self.answers = GangAnswers(self.cluster.scheduling, self.planning, self.cluster.grace)
        self.binder = Binder(scheduling, writer, clock)
        self._duties = GangDuties(scheduling, self.planning, writer, store, self._notice)
        releaser, state = Releaser(writer), self.cluster.state
        right = PatchRight(store, clock)
        self._admission = Admission(self.gangs, self.planning, releaser, right)
        self._nominations = StaleNominations(state, releaser)
        self._wake_ups = WakeUps(
            state, self.gangs, self.planning, Pokes(releaser, right, clock), right
        )
        self._budgets = BudgetWatch(store, clock)
        self.evictor: Evictor | None = None
        if preemption is not None:
            state.victim_rules = Rules(preemptible_only=preemption.victims == "preemptible")
            self.evictor = Evictor(
                scheduling=scheduling,
                planning=self.planning,
                budgets=self._budgets,
                writer=writer,
                releaser=releaser,
                right=right,
                notice=self._notice,
                settings=preemption,
            )
        self._reconciler = Reconciler(
            self.cluster.state, self.binder, writer, clock, watch_is_behind=self._list_again
        )
        self._events: list[tuple[Item, bool]] = []
        self._woken = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.errors: list[str] = []
        store.listeners.append(self._hear)

    def start(self) -> None:
        self._run(self._watch(), self.cluster.run(), self._budgets.run())

    async def take_over(self) -> None:
        """List everything, plan what others have begun, and lead."""
        await self._list()
        await self._duties.take_over()
        self.cluster.scheduling.nominated.claim_all()
        self.leads = True
        if self.evictor is not None:
            await self.evictor.take_over()
            self._run(self.evictor.run())
        self._run(self._duties.run(), self._admission.run(), self._reconciler.run())
        self._run(self._nominations.run(), self._wake_ups.run())

    def _notice(self, about: Item, reason: str, message: str) -> None:
        self.events.append((about.metadata.name, reason, message))

    def stop_leading(self) -> None:
        """Stop all duties, and forget what is not on the API server."""
        self.leads = False
        watch, own = self._tasks[:3], self._tasks[3:]
        self._tasks = watch
        for task in own:
            task.cancel()
        self.cluster.scheduling.forget()

    def kill(self) -> None:
        self.leads = False
        self.store.listeners.remove(self._hear)
        for task in self._tasks:
            task.cancel()

    def _list_again(self) -> None:
        self.set_lag(0.0)

    @property
    def is_behind(self) -> bool:
        """Whether the watch has something to tell."""
        return bool(self._events)

    def completable(self) -> set[str]:
        """Return the gangs that have begun, with usable slots for all that are missing.

        A slot on a node that was cordoned, for example, stays while the outcome of a binding is
        unknown, and serves nobody else. It is empty if the watch has more to tell.
        """
        found = set()
        for group in () if self.is_behind else self.groups:
            record = self.gangs.known(group)
            if record is None or not group.begun or self.gangs.lacking(group, record):
                continue
            hold = self.ledger.hold_of(record.owner)
            slots = hold.slots if hold is not None else ()
            if all(self._takes_pods(slot.node) for slot in slots):
                found.add(group.key.name)
        return found

    def has_lost_room(self) -> bool:
        """Return whether a gang has begun, and has no slots for all that are missing.

        A new leader cannot know to which of two such gangs the room belonged that one has left.
        """
        return any(
            group.begun and not record.is_whole and self.gangs.lacking(group, record)
            for group in self.groups
            if (record := self.gangs.known(group)) is not None
        )

    def _takes_pods(self, name: str) -> bool:
        node = self.store.nodes.get(name)
        return node is not None and not node.spec.unschedulable

    def whole(self) -> set[str]:
        """Return the gangs whose members are placed one by one."""
        known = [(group.key.name, self.gangs.known(group)) for group in self.groups]
        return {name for name, record in known if record is not None and record.is_whole}

    def set_lag(self, seconds: float) -> None:
        self.lag = seconds
        self._woken.set()

    def _hear(self, item: Item, is_gone: bool) -> None:
        self._events.append((item, is_gone))
        self._woken.set()

    async def _list(self) -> None:
        self._events.clear()
        cluster, store = self.cluster, self.store
        for _ in cluster.replacing_nodes(list(store.nodes.values())):
            pass
        live = [pod for pod in store.pods.values() if not pod.is_terminal]
        for _ in cluster.replacing_pods(live):
            pass

    async def _watch(self) -> None:
        while True:
            if not self._events or math.isinf(self.lag):
                self._woken.clear()
                await self._woken.wait()
                continue
            await asyncio.sleep(self.lag)
            if self._events and not math.isinf(self.lag):
                self._tell(*self._events.pop(0))

    def _tell(self, item: Item, is_gone: bool) -> None:
        cluster = self.cluster
        if isinstance(item, Node):
            (cluster.node_deleted if is_gone else cluster.node_changed)(item)
        elif is_gone or item.is_terminal:  # the watch of live pods shows an end as a deletion
            cluster.pod_deleted(item)
        else:
            cluster.pod_changed(item)

    def _run(self, *works) -> None:
        for work in works:
            task = asyncio.ensure_future(work)
            task.add_done_callback(self._ended)
            self._tasks.append(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self.errors.append(repr(task.exception()))
