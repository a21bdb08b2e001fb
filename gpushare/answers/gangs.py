"""What is known about a gang, and the JSON of it (pure).

``gang_text.sentence`` writes the facts for people: `gpushare gangs`, explain, the Event, the live
page and inspect show the same sentence.
"""

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from heapq import merge
from itertools import chain, islice
from typing import Final, NamedTuple, Protocol

import msgspec

from gpushare.annotations.pod_annotations import asks_for_share
from gpushare.answers.preemptions import PreemptionFacts
from gpushare.answers.queue.over_quota import OverQuota
from gpushare.cards.model import Request
from gpushare.contract import GATE_ADMISSION, LABEL_JOB_ROLE, LABEL_WORKER_INDEX
from gpushare.errors import RequestError
from gpushare.groups.group import Group
from gpushare.groups.model import GroupKey, Source
from gpushare.groups.pod_groups import API_GROUPS
from gpushare.groups.sources import minimum_of
from gpushare.objects.model import Pod
from gpushare.placement.reasons import Reason
from gpushare.planning.ask import NoPlan

MOST_LISTED: Final = 2000  # in one answer: 1 MB
_SORTED_AT_ONCE: Final = 500


class Phase(StrEnum):
    """Where a gang is on its way.

    ``WAITING_FOR_MEMBERS``: fewer pods exist than have to start together. ``INVALID``: the group
    has a problem that only a change of it ends. ``WAITING_FOR_ROOM``: no plan yet, so nothing is
    reserved. ``STARTING``: there is a plan, and the minimum was never bound at one time.
    ``PLACED``: the minimum was bound at one time; true until the last member is gone. ``BROKEN``:
    it did not become complete in time, and its bound members are being evicted.
    """

    WAITING_FOR_MEMBERS = "WaitingForMembers"
    INVALID = "Invalid"
    WAITING_FOR_ROOM = "WaitingForRoom"
    STARTING = "Starting"
    PLACED = "Placed"
    BROKEN = "Broken"


class Shape(NamedTuple):
    """So many ``pods`` that each request ``mib`` on each of ``gpus`` GPUs of one node.

    Without GPU memory both are 0.
    """

    pods: int
    gpus: int
    mib: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GangFacts:
    """All that the sentence about a gang depends on.

    ``members`` are the live pods that count, ``bound`` those with a node, ``slots`` those with a
    slot in the plan, ``gated`` those that still have gpushare's scheduling gate. ``created`` is
    when the oldest live pod was created, by the API server's clock. ``shapes`` are of the members
    without a node. ``foreign_gates``: the number of pods that do not count yet because of a
    scheduling gate of others, by its name.

    ``problem`` is set if INVALID. ``no_plan`` is the last answer of the planner; WAITING_FOR_ROOM
    without it means that the gang was not tried yet. ``retry_seconds`` is the time until the
    planner is asked again if not at the next change. ``starting_seconds`` is how long the gang has
    been STARTING, ``complete_seconds`` how long that may take, 0 if unknown. ``stranded`` members
    find no node that they may start on. ``bare``: bound members without a controller, which are
    never evicted. ``ending``: the pods of a gang all of whose pods are being deleted.
    ``gates_stay``: members have gpushare's gate, and the extender may not remove it. ``evicting``:
    the pods that are evicted for it. ``over_quota``: ``no_plan`` is about the quota of its
    namespace. ``waits_for_ready`` is the kind of a controller that may create more members only
    when the present ones are Ready.
    """

    key: GroupKey
    phase: Phase
    minimum: int
    members: int
    bound: int = 0
    slots: int = 0
    gated: int = 0
    priority: int = 0
    zone_key: str = ""
    zone: str = ""
    created: str = ""
    shapes: tuple[Shape, ...] = ()
    foreign_gates: Mapping[str, int] = field(default_factory=dict)
    problem: Reason | None = None
    no_plan: NoPlan | None = None
    retry_seconds: float = 0.0
    starting_seconds: float = 0.0
    complete_seconds: float = 0.0
    stranded: int = 0
    bare: int = 0
    ending: int = 0
    gates_stay: bool = False
    evicting: PreemptionFacts | None = None
    over_quota: OverQuota | None = None
    waits_for_ready: str = ""


def facts_of(group: Group, request_of: Callable[[Pod], Request], unit_mib: int) -> GangFacts:
    """Return what the group's objects show; the zone, slots and plans are known elsewhere.

    While others hold back all members, the minimum is what these say.

    The phase is PLACED if the minimum is bound now, or bound members are left of which all are
    being deleted. It is never STARTING or BROKEN.
    """
    present, bound, minimum = group.present(), group.bound, group.minimum
    if not present and group.key.source not in API_GROUPS:
        stated = (minimum_of(pod, group.key.source) for pod in group.members.values())
        minimum = max((each for each in stated if isinstance(each, int)), default=minimum)
    waiting = [pod for pod in present if not pod.node]
    phase = Phase.WAITING_FOR_ROOM
    if bound >= minimum or group.is_ending:
        phase = Phase.PLACED
    elif group.problem is not None:
        phase = Phase.INVALID
    elif len(present) < minimum:
        phase = Phase.WAITING_FOR_MEMBERS
    return GangFacts(
        key=group.key,
        phase=phase,
        minimum=minimum,
        members=len(present),
        bound=bound,
        gated=group.gated,
        priority=group.priority,
        zone_key=group.zone_key,
        created=min(pod.metadata.creation_timestamp or "" for pod in group.members.values()),
        shapes=shapes_of(waiting, request_of, unit_mib),
        foreign_gates=_foreign_gates(group.members.values()),
        problem=group.problem,
        complete_seconds=group.complete_seconds or 0.0,
        bare=sum(bool(pod.node) and not pod.has_controller for pod in present),
        ending=len(group.members) if group.is_ending else 0,
        waits_for_ready=waits_for_ready(present) if phase is Phase.WAITING_FOR_MEMBERS else "",
    )


def shapes_of(
    pods: Iterable[Pod], request_of: Callable[[Pod], Request], unit_mib: int
) -> tuple[Shape, ...]:
    """Return the pods by what they request, without those whose request cannot be read.

    Return nothing if the unit is not known, and 0.
    """
    counted: Counter[tuple[int, int]] = Counter()
    for pod in pods if unit_mib else ():
        if not asks_for_share(pod):
            counted[0, 0] += 1
            continue
        try:
            request = request_of(pod)
        except RequestError:
            continue
        counted[request.card_count, request.units_per_card * unit_mib] += 1
    return tuple(Shape(number, *shape) for shape, number in counted.items())


def waits_for_ready(members: Sequence[Pod]) -> str:
    """Return the kind of the controller that may create more members only when these are Ready.

    Its setting is not in the pods. A StatefulSet has then exactly one pod without a node
    (pkg/controller/statefulset, monotonic), a LeaderWorkerSet only leaders, an MPIJob no launcher.
    """
    waiting = [pod for pod in members if not pod.node]
    owners = [(owner.kind, owner.uid) for pod in waiting if (owner := pod.controller)]
    if waiting and all(pod.labels.get(LABEL_WORKER_INDEX) == "0" for pod in members):
        return "LeaderWorkerSet"
    has_launcher = any(pod.labels.get(LABEL_JOB_ROLE) == "launcher" for pod in members)
    if not has_launcher and any(kind == "MPIJob" for kind, _ in owners):
        return "MPIJob"
    numbers = Counter(each for each in owners if each[0] == "StatefulSet")
    return "StatefulSet" if 1 in numbers.values() else ""


class GangView(msgspec.Struct, rename="camel"):
    """One gang; the fields are those of GangFacts.

    ``text`` is the sentence. ``age_seconds`` is since ``created``; it and ``minimum`` are 0 if they
    are unknown.
    """

    namespace: str
    name: str
    source: str
    minimum: int
    members: int
    bound: int
    slots: int
    gated: int
    phase: str
    zone_key: str
    zone: str
    created: str
    age_seconds: float
    priority: int
    text: str

    @property
    def key(self) -> str:
        """Return its unique key, that of its group."""
        return str(GroupKey(self.namespace, Source(self.source), self.name))


class GangList(msgspec.Struct, rename="camel"):
    """Gangs in the order of their names; ``left_out`` counts others."""

    gangs: list[GangView]
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class GangFigures:
    """The number of gangs in each phase, and of members without a node of gangs not yet placed.

    ``longest_incomplete`` is for how many seconds the gang has been incomplete that is so longest:
    members are bound, and the minimum never was.
    """

    phases: Mapping[str, int]
    waiting_members: int
    longest_incomplete: float = 0.0


class GangStates(Protocol):
    """What is known about all gangs now.

    A gang is a group of pods, of which some request GPU memory or have gpushare's scheduling gate.
    A single pod with the gate is none here.
    """

    @property
    def gates_stay(self) -> bool:
        """Return whether it is known that the extender may not remove gpushare's gates."""

    def views(self) -> Iterable[GangView]:
        """Return the gangs, in any order; they may change while the result is read."""

    def view_of(self, uid: str) -> GangView | None:
        """Return the gang of a live pod; None if it is in none."""

    def figures(self) -> GangFigures:
        """Count the gangs, for metrics."""


class NoGangs:
    """There are no gangs, or nothing is known about them."""

    gates_stay = False

    def views(self) -> Iterable[GangView]:
        return ()

    def view_of(self, _uid: str) -> GangView | None:
        return None

    def figures(self) -> GangFigures:
        return GangFigures({}, 0)


NO_GANGS: Final = NoGangs()


def list_gangs(
    states: GangStates, namespace: str = "", most: int = MOST_LISTED
) -> Generator[None, None, GangList]:
    """Return at most so many gangs of a namespace, or of all namespaces, in short steps."""
    shown, more = yield from choose_gangs(states, namespace, most)
    return GangList(sorted(shown, key=_key), more.total())


def choose_gangs(
    states: GangStates, namespace: str, most: int
) -> Generator[None, None, tuple[list[GangView], Counter[str]]]:
    """Return at most so many gangs, and how many more there are, by namespace.

    Namespaces take turns, so that the gangs of one do not hide those of others.
    """
    parts: list[list[GangView]] = [[]]
    for each in states.views():
        yield
        if namespace and each.namespace != namespace:
            continue
        parts[-1].append(each)
        if len(parts[-1]) == _SORTED_AT_ONCE:
            parts[-1].sort(key=_urgency)
            parts.append([])
    parts[-1].sort(key=_urgency)
    count = Counter[str]()
    turns: list[list[GangView]] = []  # the most urgent gangs of each namespace, then the next ones
    for each in merge(*parts, key=_urgency):
        yield
        if (turn := count[each.namespace]) == len(turns):
            turns.append([])
        turns[turn].append(each)
        count[each.namespace] += 1
    shown = list(islice(chain.from_iterable(turns), most))
    count.subtract(each.namespace for each in shown)
    return shown, +count


def _urgency(gang: GangView) -> tuple[bool, str, str, str]:
    return gang.phase == Phase.PLACED, *_key(gang)


def _key(gang: GangView) -> tuple[str, str, str]:
    return gang.namespace, gang.name, gang.source


def _foreign_gates(pods: Iterable[Pod]) -> dict[str, int]:
    counted: Counter[str] = Counter()
    for pod in pods:
        if pod.has_foreign_gate and pod.metadata.deletion_timestamp is None:
            counted[next(gate for gate in pod.gates if gate != GATE_ADMISSION)] += 1
    return dict(counted)
