"""The nodes on which all members have to be together: those of one zone, or all (pure)."""

from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpushare.placement.rank import Rank
from gpushare.placement.trial import World
from gpushare.planning.ask import Ask
from gpushare.planning.capacity import rank_of
from gpushare.planning.draft import Besides, DraftNode
from gpushare.planning.index import ShapeIndex
from gpushare.planning.shapes import EqualMembers

NODES_A_STEP: Final = 128


@dataclass(slots=True, eq=False)
class Candidates:
    """The nodes of one area for one group.

    ``takes`` has for each eligible node the members that it has room for, ``ranks`` are of the
    nodes with room, best first, and ``room`` is the sum over all nodes.
    """

    group: EqualMembers
    takes: dict[str, int] = field(default_factory=dict)
    ranks: list[Rank] = field(default_factory=list)
    room: int = 0

    @property
    def wanted(self) -> int:
        return len(self.group.pods)


@dataclass(slots=True, eq=False)
class Area:
    """``candidates`` are in the order of the groups. ``zone`` is empty without a zone key."""

    zone: str
    candidates: list[Candidates]


def areas_of(
    world: World, ask: Ask, besides: Besides, indexes: Collection[tuple[EqualMembers, ShapeIndex]]
) -> Generator[None, None, list[Area]]:
    """Return the areas in which a group has eligible nodes, in no particular order."""
    zones = _Zones(world, ask, [group for group, _ in indexes])
    for number, (group, index) in enumerate(indexes):
        yield
        takes, ranks = _allowed(ask, group, index)
        if besides.nodes:
            yield from _correct(world, besides, group, takes, ranks)
        yield from zones.add(number, takes, ranks)
    return list(zones.areas.values())


class _Zones:
    """Sorts the nodes of each group by zone; without a zone key, all are in the zone ""."""

    def __init__(self, world: World, ask: Ask, groups: Sequence[EqualMembers]) -> None:
        self.areas: dict[str, Area] = {}
        self._world, self._ask, self._groups = world, ask, groups
        self._zones: dict[str, str | None] = {}  # by node; None if it cannot be used

    def add(
        self, number: int, takes: dict[str, int], ranks: list[Rank]
    ) -> Generator[None, None, None]:
        """Add the nodes of one group."""
        if not self._ask.zone_key:
            room = sum(takes.values())
            self._area("").candidates[number] = Candidates(self._groups[number], takes, ranks, room)
            return
        for step, (name, most) in enumerate(takes.items()):
            if step % NODES_A_STEP == 0:
                yield
            zone = self._zone_of(name)
            if zone is not None:
                if zone not in self.areas:
                    yield
                here = self._area(zone).candidates[number]
                here.takes[name] = most
                here.room += most
        for step, rank in enumerate(ranks):
            if step % NODES_A_STEP == 0:
                yield
            zone = self._zone_of(rank[3])
            if zone is not None:
                self.areas[zone].candidates[number].ranks.append(rank)

    def _area(self, zone: str) -> Area:
        found = self.areas.get(zone)
        if found is None:
            candidates = [Candidates(group) for group in self._groups]
            found = self.areas[zone] = Area(zone, candidates)
        return found

    def _zone_of(self, name: str) -> str | None:
        if name not in self._zones:
            node, ask = self._world.node(name), self._ask
            zone = node.labels.get(ask.zone_key) if node is not None else None
            self._zones[name] = zone if zone and ask.zone in (None, zone) else None
        return self._zones[name]


def _allowed(ask: Ask, group: EqualMembers, index: ShapeIndex) -> tuple[dict[str, int], list[Rank]]:
    """Return copies of what the index knows about the nodes that the ask allows."""
    without = group.avoid
    if group.shape.request is not None and ask.cooling:
        without = without | ask.cooling
    if ask.only is not None:
        names = [name for name in ask.only if name in index.takes and name not in without]
        return {name: index.takes[name] for name in names}, index.ranks_of(names)
    takes = dict(index.takes)
    if not without:
        return takes, list(index.ranks)
    for name in without:
        takes.pop(name, None)
    return takes, [each for each in index.ranks if each[3] not in without]


def _correct(
    world: World, besides: Besides, group: EqualMembers, takes: dict[str, int], ranks: list[Rank]
) -> Generator[None, None, None]:
    """Measure the nodes again of which something does not count against the gang."""
    others = [name for name in besides.nodes if name in takes]
    ranks[:] = [each for each in ranks if each[3] not in besides.nodes]
    shape = group.shape
    for name in others:
        yield
        node = DraftNode(*besides.left(name))
        takes[name] = most = node.takes(shape)
        if most:
            now = rank_of(world.policies, shape, node.cards, most, name)
            ranks += [now] if now is not None else []
    ranks.sort()
