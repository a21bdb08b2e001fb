"""A cluster for tests of the planner, and gangs that ask for room in it."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count

import msgspec

from gpushare.annotations import pod_annotations
from gpushare.cards.model import Card, Health, Inventory, Request, Share
from gpushare.contract import LABEL_CARD_COUNT, RESOURCE_MEMORY
from gpushare.errors import RequestError
from gpushare.ledger.changes import Changes
from gpushare.ledger.holds import Hold, Slot
from gpushare.ledger.ledger import Ledger
from gpushare.ledger.resource_use import ResourceUse
from gpushare.objects.model import (
    Container,
    Node,
    NodeSpec,
    NodeStatus,
    ObjectMeta,
    Pod,
    PodSpec,
    Resources,
)
from gpushare.objects.pod_requests import Amounts, Requests, requests_of, resources_used
from gpushare.objects.scheduling import (
    Affinity,
    NodeAffinity,
    NodeSelector,
    NodeSelectorTerm,
    Requirement,
    Taint,
    Toleration,
)
from gpushare.placement.node_resources import free_resources
from gpushare.placement.rank import Policies
from gpushare.placement.reasons import Reason
from gpushare.planning.ask import Ask, NoPlan, Plan
from gpushare.planning.planner import Planner
from gpushare.process.time_slices import run_all

ZONE = "zone"


class PlannedWorld:
    """Nodes with cards and CPU; what is used there is used by pods of others."""

    unit_mib = 1

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.policies = Policies()
        self.nodes: dict[str, Node] = {}
        self.closed: dict[str, Reason] = {}
        self.evicted: dict[str, set[str]] = {}  # uids by node
        self._use = ResourceUse()
        self._numbers = count()

    def add(
        self,
        name: str,
        *cards: int | tuple[int, int],
        cpu: int = 1000,
        zone: str = "",
        labels: Mapping[str, str] | None = None,
        taints: Iterable[Taint] = (),
        unschedulable: bool = False,
        unhealthy: Sequence[int] = (),
        cordoned: Sequence[int] = (),
        pods: int = 110,
        **status: str,
    ) -> None:
        """Add a node, or change it. A card is its units, or its units and the used ones."""
        whole = [(each, 0) if isinstance(each, int) else each for each in cards]
        found = tuple(
            Card(
                index=index,
                uuid=f"{name}-{index}",
                units=units,
                minor=index,
                health=Health.UNHEALTHY if index in unhealthy else Health.HEALTHY,
                is_cordoned=index in cordoned,
            )
            for index, (units, _) in enumerate(whole)
        )
        words = {**(labels or {}), **({ZONE: zone} if zone else {})}
        healthy = sum(card.units for card in found if card.is_healthy)
        memory = {RESOURCE_MEMORY: str(healthy)} if found else {}
        allocatable = {"cpu": str(cpu), "pods": str(pods), **memory, **status}
        self.nodes[name] = Node(
            ObjectMeta(name=name, labels=words),
            NodeStatus(allocatable, allocatable),
            NodeSpec(unschedulable or None, tuple(taints) or None),
        )
        self.ledger.set_inventory(name, Inventory(1, found, binding="late") if found else None)
        self._use.changes.add(name)
        for index, (_, used) in enumerate(whole):
            if used:
                self.use(name, used, index)

    def use(self, name: str, units: int, *indexes: int, cpu: int = 0) -> None:
        """Bind a pod of somebody else, which uses ``units`` of each of these cards."""
        uid = f"other-{next(self._numbers)}"
        if units:
            uuids = tuple(f"{name}-{index}" for index in indexes)
            self.ledger.put_share(Share(uid, "default", uid, name, units, uuids))
        found = pod(uid, units, cards=len(indexes) or 1, cpu=cpu, node=name)
        self._use.put(uid, name, resources_used(found))

    def request_of(self, found: Pod) -> Request:
        return pod_annotations.request_of(found)

    def node(self, name: str) -> Node | None:
        return self.nodes.get(name)

    def node_names(self) -> set[str]:
        return {*self.ledger.nodes(), *self.closed}

    def all_node_names(self) -> list[str]:
        return list(self.nodes)

    def why_closed(self, node: str) -> Reason | None:
        return self.closed.get(node)

    def pods_of(self, node: str) -> list[Pod]:
        return []

    def leaving(self, node: str) -> Mapping[str, Requests]:
        return {uid: self._use.requests_of(uid) for uid in self.evicted.get(node, ())}

    def free_resources(
        self, node: str, *, besides: str = "", priority: int | None = None
    ) -> Amounts | None:
        found, used = self.nodes.get(node), self._use.used(node)
        if found is None or used is None:
            return None
        kept = self.ledger.kept_resources(node, besides=besides, priority=priority)
        try:
            return free_resources(found, used, kept)
        except RequestError:
            return None

    @contextmanager
    def without(self, uids: Collection[str]) -> Iterator[None]:
        """Leave out what holds keep for these pods."""
        ledger, self.ledger = self.ledger, self.ledger.overlay()
        for uid in uids:
            self.ledger.drop_slot(uid)
        try:
            yield
        finally:
            self.ledger = ledger

    @property
    def resource_changes(self) -> Changes:
        return self._use.changes


def pod(
    name: str,
    units: int = 0,
    *,
    cards: int = 1,
    cpu: int = 0,
    node: str = "",
    selector: Mapping[str, str] | None = None,
    names: Sequence[str] = (),
    tolerations: Iterable[Toleration] = (),
    annotations: Mapping[str, str] | None = None,
    priority: int | None = None,
) -> Pod:
    """Return a pod that asks for ``units`` of each of ``cards``, and for so many CPUs.

    ``names`` are the only nodes that its required affinity allows.
    """
    amounts: dict[str, str | int] = {"cpu": str(cpu)} if cpu else {}
    if units:
        amounts[RESOURCE_MEMORY] = str(units * cards)
    affinity = None
    if names:
        term = NodeSelectorTerm(None, (Requirement("metadata.name", "In", tuple(names)),))
        affinity = Affinity(NodeAffinity(NodeSelector((term,))))
    spec = PodSpec(
        node or None,
        (Container("main", Resources(amounts, amounts)),),
        priority=priority,
        node_selector=dict(selector or {}) or None,
        affinity=affinity,
        tolerations=tuple(tolerations) or None,
    )
    labels = {LABEL_CARD_COUNT: str(cards)} if units and cards > 1 else {}
    meta = ObjectMeta(name, "default", name, annotations=dict(annotations or {}), labels=labels)
    return Pod(meta, spec)


def gang(number: int, units: int = 0, *, prefix: str = "m", **more: object) -> tuple[Pod, ...]:
    """Return equal pods."""
    first = pod("first", units, **more)  # type: ignore[arg-type]
    names = [f"{prefix}{each}" for each in range(number)]
    return tuple(
        msgspec.structs.replace(
            first, metadata=msgspec.structs.replace(first.metadata, name=name, uid=name)
        )
        for name in names
    )


def ask(members: Iterable[Pod], least: int | None = None, **more: object) -> Ask:
    pods = tuple(members)
    return Ask("gang", pods, len(pods) if least is None else least, **more)  # type: ignore[arg-type]


def plan(world: PlannedWorld, members: Iterable[Pod], **more: object) -> Plan | NoPlan:
    """Return the planner's answer; a plan was replayed."""
    asked = ask(members, **more)  # type: ignore[arg-type]
    found = run_all(Planner(world).plan(asked))
    if isinstance(found, Plan):
        check(world, asked, found)
    return found


def check(world: PlannedWorld, asked: Ask, found: Plan) -> None:
    """Replay a plan: each slot fits on cards and node, in its zone, with all others."""
    pods = {each.uid: each for each in asked.members}
    uids = [slot.pod_uid for slot in found.slots]
    assert len(set(uids)) == len(uids) >= asked.least
    assert uids == [each.uid for each in asked.members if each.uid in uids]
    units: dict[str, dict[str, int]] = {}
    amounts: dict[str, dict[str, int]] = {}
    for slot in found.slots:
        member, node = pods[slot.pod_uid], world.nodes[slot.node]
        wants = requests_of(member)
        assert dict(slot.requests) == {name: much for name, much in wants.items() if much}
        assert not asked.zone_key or node.labels.get(asked.zone_key) == found.zone != ""
        assert asked.only is None or slot.node in asked.only
        assert slot.node not in asked.avoid.get(slot.pod_uid, ())
        if RESOURCE_MEMORY in wants:
            request = world.request_of(member)
            assert slot.units == request.units_per_card
            assert len(slot.cards) == len(set(slot.cards)) == request.card_count
            assert slot.node not in {*asked.cooling, *world.closed}
        else:
            assert not slot.cards
        _add(amounts.setdefault(slot.node, {}), wants)
        _add(units.setdefault(slot.node, {}), dict.fromkeys(slot.cards, slot.units))
    priority = min((each.priority for each in asked.members), default=0)
    with world.without(set(pods)):
        for name, used in amounts.items():
            free = world.free_resources(name, priority=priority)
            assert free is not None
            assert all(much <= free.get(resource, 0) for resource, much in used.items() if much)
        for name, used in units.items():
            account = world.ledger.account(name, priority=priority)
            open_ = {each.card.uuid: each.free for each in account.open} if account else {}
            assert all(much <= open_[uuid] for uuid, much in used.items())


def _add(to: dict[str, int], more: Mapping[str, int]) -> None:
    for name, amount in more.items():
        to[name] = to.get(name, 0) + amount


def hold(world: PlannedWorld, found: Plan, owner: str = "gang") -> None:
    world.ledger.keep(Hold(owner, found.slots, 1.0))


def nodes_of(found: Plan | NoPlan) -> list[str]:
    assert isinstance(found, Plan), found
    return [slot.node for slot in found.slots]


def slot_of(found: Plan | NoPlan, uid: str) -> Slot:
    assert isinstance(found, Plan), found
    return next(slot for slot in found.slots if slot.pod_uid == uid)
