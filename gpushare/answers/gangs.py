"""What is known about a gang, and how it is shown (pure).

``gang_text.sentence`` writes the facts for people: `gpushare gangs`, explain, the Event, the live
page and inspect show the same sentence.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

import msgspec

MOST_GANGS: Final = 500  # in one answer, and on the live page


class Phase(StrEnum):
    """Where a gang is on its way.

    ``WAITING_FOR_MEMBERS``: fewer pods exist than have to start together. ``INVALID``: nobody can
    say how many these are. ``WAITING_FOR_ROOM``: no plan yet, so nothing is reserved.
    ``STARTING``: there is a plan, and fewer than the minimum were ever bound at one time.
    ``PLACED``: the minimum was bound at one time; true until the last member is gone.
    ``BROKEN``: it did not become complete in time, and its bound members are being evicted.
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


class Room(NamedTuple):
    """How many of the missing members fit together; ``zone`` is empty if any node may be used."""

    zone: str
    members: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GangFacts:
    """All that the sentence about a gang depends on; times are durations in seconds.

    ``members`` are the live pods that count, ``bound`` those with a node, ``slots`` those with a
    slot in the plan, ``gated`` those that still have gpushare's scheduling gate. ``shapes`` are of
    the members without a node. ``foreign_gates``: the number of pods that do not count yet because
    of a scheduling gate of somebody else, by its name.

    ``problem`` is set with INVALID. ``reason``, ``rooms`` (the best first) and ``gave_up`` are the
    planner's answer, and ``retry_seconds`` is the time until it is asked again if that is not at
    the next change; for WAITING_FOR_ROOM, without them the gang was not tried yet.
    ``starting_seconds`` is how long it has been STARTING, and ``complete_seconds`` how long that
    may take. ``stranded``: members that no node takes on which they may start. ``bare``: bound
    members without a controller, which are never evicted.
    """

    namespace: str
    name: str
    source: str
    phase: Phase
    minimum: int
    members: int
    bound: int = 0
    slots: int = 0
    gated: int = 0
    priority: int = 0
    zone_key: str = ""
    zone: str = ""
    age_seconds: float = 0.0
    shapes: tuple[Shape, ...] = ()
    foreign_gates: Mapping[str, int] = field(default_factory=dict)
    problem: str = ""
    reason: str = ""
    rooms: tuple[Room, ...] = ()
    gave_up: bool = False
    retry_seconds: float = 0.0
    starting_seconds: float = 0.0
    complete_seconds: float = 0.0
    stranded: int = 0
    bare: int = 0


class GangView(msgspec.Struct, rename="camel"):
    """One gang as JSON; ``gang_text.view`` makes it of facts, where the fields are explained.

    ``text`` is the sentence. ``age_seconds`` is since the creation of its oldest live member.
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
    age_seconds: float
    priority: int
    text: str


class GangStates(Protocol):
    """What is known about all gangs now."""

    def views(self) -> Iterable[GangView]:
        """Return the gangs that are groups of pods; single pods with our gate are left out."""

    def view_of(self, uid: str) -> GangView | None:
        """Return the gang of a pod; None if it is in none."""


class NoGangs:
    """There are no gangs, or nothing is known about them."""

    def views(self) -> Iterable[GangView]:
        return ()

    def view_of(self, _uid: str) -> GangView | None:
        return None


NO_GANGS: Final = NoGangs()
