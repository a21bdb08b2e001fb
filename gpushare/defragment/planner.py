"""Plan moves after which more whole cards are free, or Pending pods have room (pure).

The search is bounded: partitions of MOST_NODES nodes, between which no pod moves; ROUNDS rounds, of
which the first allows as many moves for one card or pod as any of them needs at least, and each
later one allows one move more; chains of three pods (search.py); and MOST_STEPS in all.
"""

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpushare.defragment import targets
from gpushare.defragment.index import Index
from gpushare.defragment.model import CardKey, Movable, Move, MovePlan, Place, WantedPlace
from gpushare.defragment.search import Found, Search, Wanted
from gpushare.defragment.state import State, first_state
from gpushare.defragment.targets import Target
from gpushare.placement.trial import World
from gpushare.planning.ask import Ask, Plan
from gpushare.planning.planner import Planner
from gpushare.planning.search.budget import Budget
from gpushare.planning.shapes import Reader, Shape

MOST_NODES: Final = 500  # of a partition
ROUNDS: Final = 5
MOST_STEPS: Final = 200_000  # of about 0.2 ms
MOST_ZONES: Final = 16  # that are tried for a gang


def free_cards(
    world: World, number: int, movables: Iterable[Movable]
) -> Generator[None, None, MovePlan]:
    """Return moves after which ``number`` more cards are used by no pod, in short steps.

    Moved pods do not use cards that are free now. If so many are not possible, ``is_enough`` is
    false, and the plan frees those that are. In one partition a card is freed with one move where
    one is enough; otherwise fewer moves may do, because the search is bounded.
    """
    work = yield from _work(world, movables)
    for part in work.parts:
        work.first.close((yield from targets.free_cards(work.first, part.names)))
    for part in work.parts:
        part.cards = yield from targets.whole_cards(work.first, part.names)
    least = min((len(each.gone) for part in work.parts for each in part.cards), default=0)
    freed: list[CardKey] = []
    for most in range(least, least + ROUNDS):
        for part in work.parts:
            freed += yield from _freed(work, part, most, number - len(freed))
    return MovePlan(
        tuple(work.moves),
        tuple(freed),
        is_enough=len(freed) == number,
        gave_up=work.budget.gave_up,
    )


def make_room(
    world: World, ask: Ask, movables: Sequence[Movable]
) -> Generator[None, None, MovePlan]:
    """Return moves after which the first ``ask.least`` members have room together, in short steps.

    Members without GPU memory are not considered. Without enough room ``is_enough`` is false, and
    there are no moves. Raises RequestError if a pod asks for what no node could ever grant.
    """
    reader = Reader(world)
    found = yield from Planner(world).plan(ask)
    if isinstance(found, Plan):
        return _without_moves(found, ask, reader)
    members = [Wanted(pod, reader.shape_of(pod)) for pod in ask.members[: ask.least]]
    wanted = [each for each in members if each.shape.request is not None]
    best = MovePlan()
    gave_up = False
    for names in _areas(world, ask):
        work = yield from _work(world, movables)
        plan = yield from _room_on(work, wanted, names)
        gave_up |= plan.gave_up
        if plan.is_enough and (not best.is_enough or len(plan.moves) < len(best.moves)):
            best = plan
    return best if best.is_enough else MovePlan(gave_up=gave_up)


@dataclass(slots=True, eq=False)
class _Part:
    """``cards`` are those that may be freed, the fewest moves first.

    ``rooms`` are for Pending pods of a shape, by node, with the change as of which they are.
    """

    names: tuple[str, ...]
    search: Search
    cards: list[Target] = field(default_factory=list)
    rooms: dict[Shape, tuple[int, dict[str, list[Target]]]] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Work:
    """The moves that were found so far, and the state ``first`` after them."""

    first: State
    parts: list[_Part]
    budget: Budget
    moves: list[Move] = field(default_factory=list)
    wanted: list[WantedPlace] = field(default_factory=list)
    closed: frozenset[CardKey] = frozenset()

    def make(
        self, part: _Part, target: Target, most: int, wanted: Wanted | None = None
    ) -> Generator[None, None, bool]:
        """Free a target with at most so many moves; return whether that was possible."""
        found = yield from part.search.find(target, most, self.closed, wanted)
        if found is None:
            return False
        self._take(found)
        return True

    def _take(self, found: Found) -> None:
        for each in found.moves:
            self.first.remove(each.movable)
            self.first.put(each.movable.pod, each.movable.shape, each.to)
        self.moves += found.moves
        self.closed = found.closed
        self.first.close(found.closed)
        if found.wanted is not None:
            self.first.put(found.wanted.pod, found.wanted.shape, found.wanted.place)
            self.wanted.append(found.wanted)

    def rooms(
        self, part: _Part, shape: Shape, names: frozenset[str] | None
    ) -> Generator[None, None, list[Target]]:
        """Return who might leave so that a Pending pod has room, the fewest first."""
        seen, found = part.rooms.get(shape, (-1, {}))
        changed = self.first.changes.since(seen) if seen >= 0 else None
        due = [
            name
            for name in part.names
            if (changed is None or name in changed) and (names is None or name in names)
        ]
        now = self.first.changes.now
        found |= yield from targets.rooms_of(self.first, shape, due)
        part.rooms[shape] = now, found
        every = (each for here in found.values() for each in here)
        return sorted(every, key=lambda each: each.order)


def _work(world: World, movables: Iterable[Movable]) -> Generator[None, None, _Work]:
    first = yield from first_state(world, movables)
    names, budget = sorted(world.node_names()), Budget(MOST_STEPS)
    number = -(-len(names) // MOST_NODES)
    parts = []
    for part in range(number):
        mine = tuple(names[part::number])  # neighbors are often alike, and in different ones
        parts.append(_Part(mine, Search(first, Index(first, mine), budget)))
    return _Work(first, parts, budget)


def _freed(
    work: _Work, part: _Part, most: int, number: int
) -> Generator[None, None, list[CardKey]]:
    """Free up to ``number`` cards of a partition, each with at most so many moves."""
    freed: list[CardKey] = []
    left: list[Target] = []
    for target in part.cards:
        yield
        if len(freed) == number or len(target.gone) > most:
            left.append(target)
        elif targets.is_current(work.first, target):
            if (yield from work.make(part, target, most)):
                freed.append(CardKey(target.node, target.card))
            else:
                left.append(target)
    part.cards = left
    return freed


def _room_on(
    work: _Work, wanted: Sequence[Wanted], names: frozenset[str] | None
) -> Generator[None, None, MovePlan]:
    """Return moves after which all of the pods have room on nodes of these names."""
    largest_first = sorted(
        wanted, key=lambda each: -each.shape.need.units * each.shape.need.card_count
    )
    for each in largest_first:
        if not (yield from _has_room(work, each, names)):
            return MovePlan(gave_up=work.budget.gave_up)
    return MovePlan(
        tuple(work.moves),
        wanted=tuple(work.wanted),
        is_enough=True,
        gave_up=work.budget.gave_up,
    )


def _has_room(
    work: _Work, wanted: Wanted, names: frozenset[str] | None
) -> Generator[None, None, bool]:
    """Make room for one more pod with the fewest moves; return whether that was possible."""
    found: list[list[Target]] = []
    for part in work.parts:
        found += [(yield from work.rooms(part, wanted.shape, names))]
    least = min((len(each.gone) for here in found for each in here), default=0)
    for most in range(least, least + ROUNDS):
        for part, here in zip(work.parts, found, strict=True):
            for target in here:
                if len(target.gone) <= most and (yield from work.make(part, target, most, wanted)):
                    return True
    return False


def _areas(world: World, ask: Ask) -> list[frozenset[str] | None]:
    """Return the nodes of each zone that the members may be in together; None for all nodes."""
    if not ask.zone_key:
        return [None]
    zones: dict[str, set[str]] = {}
    for name in world.node_names():
        node = world.node(name)
        zone = node.labels.get(ask.zone_key) if node is not None else None
        if zone and ask.zone in (None, zone):
            zones.setdefault(zone, set()).add(name)
    free = {zone: sum(_free_on(world, name) for name in names) for zone, names in zones.items()}
    most_free = sorted(zones, key=lambda zone: (-free[zone], zone))[:MOST_ZONES]
    return [frozenset(zones[zone]) for zone in most_free]


def _free_on(world: World, name: str) -> int:
    account = world.ledger.account(name)
    return sum(account.largest_free) if account is not None else 0


def _without_moves(plan: Plan, ask: Ask, reader: Reader) -> MovePlan:
    pods = {pod.uid: pod for pod in ask.members}
    wanted = [
        WantedPlace(pod, reader.shape_of(pod), Place(slot.node, slot.cards))
        for pod, slot in ((pods[slot.pod_uid], slot) for slot in plan.slots if slot.cards)
    ]
    return MovePlan(wanted=tuple(wanted), is_enough=True)
