"""Whether members fit in an area while some pods count as gone (pure).

For members of one shape this is a sum over the nodes. If they differ, sums are a necessary
condition, and a plan decides.
"""

from collections.abc import Collection, Generator, Hashable, Mapping, Sequence
from heapq import nlargest
from typing import Final, Protocol

from gpushare.ledger.accounts import NodeAccount
from gpushare.objects.pod_requests import Requests
from gpushare.placement.card_choice import FreeCards
from gpushare.placement.rank import Rank
from gpushare.placement.trial import World
from gpushare.planning.areas import Area, Candidates
from gpushare.planning.capacity import rank_of
from gpushare.planning.draft import Besides, Fit
from gpushare.planning.fit import fit, ranks_to_place
from gpushare.planning.search.budget import Budget
from gpushare.planning.shapes import EqualMembers, Need, Shape
from gpushare.preemption.node_room import Batch, NodeRoom
from gpushare.process.sorting import sorted_in_steps

# Of about 1 us, to place members among some nodes.
STEPS_A_MEMBER, STEPS_A_NODE, STEPS_A_RANK = 30, 10, 5
STEPS_A_MEASURE: Final = 5  # of how many members of one shape a node takes
NODES_A_STEP: Final = 16
MEASURED_A_STEP: Final = 16


class Room(Protocol):
    """``nodes`` are those that are eligible. ``is_quick``: ``fits`` takes no time.

    ``found`` are the slots of the last yes, if any are needed for it.
    """

    nodes: dict[str, NodeRoom]
    is_quick: bool
    found: Fit | None

    def reset(self) -> Generator[None, None, None]:
        """Put everybody back."""

    def change(self, batch: Batch, sign: int) -> None:
        """Let pods go (``sign`` is 1), or put them back (-1)."""

    def fits(self) -> Generator[None, None, bool]:
        """Return whether all members fit now."""

    def gain(self, batch: Batch) -> int:
        """Return what a batch of one node that is gone is good for."""


class OneShape:
    """Members of one shape: the answer is exact."""

    is_quick = True

    def __init__(self, nodes: dict[str, NodeRoom], shape: Shape, wanted: int) -> None:
        self.nodes, self._shape, self._wanted = nodes, shape, wanted
        self.found: Fit | None = None
        self._takes = dict.fromkeys(nodes, 0)
        self._room = 0
        self._changed: set[str] = set()  # of which ``takes`` and ``room`` are not known

    def reset(self) -> Generator[None, None, None]:
        for number, node in enumerate(self.nodes.values()):
            if number % NODES_A_STEP == 0:
                yield
            node.reset()
        self._changed.update(self.nodes)

    def change(self, batch: Batch, sign: int) -> None:
        for load in batch.loads:
            name = load.node
            node = self.nodes.get(name)
            if node is not None:
                node.change(load, sign)
                if sign > 0 or self._takes[name]:  # else it takes nobody after that either
                    self._changed.add(name)

    def fits(self) -> Generator[None, None, bool]:
        number = 0
        while self._changed:
            number += 1
            if number % NODES_A_STEP == 0:
                yield
            self._measure(self._changed.pop())
        return self._room >= self._wanted

    def gain(self, batch: Batch) -> int:
        (load,) = batch.loads
        self._measure(load.node)
        if not self._takes[load.node]:
            return 0
        before = self._room
        self.nodes[load.node].change(load, -1)
        self._measure(load.node)
        found = before - self._room
        self.change(batch, 1)
        return found

    def _measure(self, name: str) -> None:
        now = self.nodes[name].takes(self._shape)
        self._room += now - self._takes[name]
        self._takes[name] = now


class SeveralShapes:
    """Members of several shapes. ``limit`` is for all questions in all areas together.

    ``limit.gave_up``: an answer may have been no although the members fit.
    """

    is_quick = False

    def __init__(self, world: World, nodes: dict[str, NodeRoom], area: Area, limit: Budget) -> None:
        self.nodes = nodes
        self.found: Fit | None = None
        self._limit, self._policies, self._area = limit, world.policies, area
        self._groups = [here.group for here in area.candidates]
        self._wanted = [len(group.pods) for group in self._groups]
        self._takes: list[dict[str, int]] = []
        self._needed: list[int] = []
        self._room = [0 for _ in self._groups]
        self._ranks: list[dict[str, Rank]] = [{} for _ in self._groups]
        self._left = _Left(world, nodes)
        self._changed: dict[str, None] = dict.fromkeys(nodes)

    def read(self) -> Generator[None, None, None]:
        """Read which nodes each group may use; do it first."""
        for here in self._area.candidates:
            yield
            self._takes.append(
                dict.fromkeys([name for name in here.takes if name in self.nodes], 0)
            )
        self._needed = yield from _needed(self._groups, self._takes)

    def reset(self) -> Generator[None, None, None]:
        for number, (name, node) in enumerate(self.nodes.items()):
            if number % NODES_A_STEP == 0:
                yield
            node.reset()
            self._note(name)

    def change(self, batch: Batch, sign: int) -> None:
        for load in batch.loads:
            node = self.nodes.get(load.node)
            if node is not None:
                node.change(load, sign)
                self._note(load.node)

    def fits(self) -> Generator[None, None, bool]:
        steps = STEPS_A_MEASURE * len(self._changed) * len(self._groups)
        if steps and not self._limit.spend(steps):
            return False
        yield from self._measure()
        if any(room < much for room, much in zip(self._room, self._needed, strict=True)):
            return False
        every: dict[str, None] = {}
        for takes in self._takes:
            yield
            every |= dict.fromkeys([name for name, most in takes.items() if most])
        few = yield from self._roomiest()
        found = (yield from self._fit(few)) if len(few) < len(every) else None
        if found is None:
            found = yield from self._fit(every)
        self.found = found or self.found
        return found is not None

    def gain(self, batch: Batch) -> int:
        return sum(load.units for load in batch.loads)

    def _note(self, name: str) -> None:
        """Note that a node changed."""
        self._changed[name] = None
        self._left.accounts.pop(name, None)
        for ranks in self._ranks:
            ranks.pop(name, None)

    def _measure(self) -> Generator[None, None, None]:
        """Count again how many members the changed nodes take."""
        changed, self._changed = self._changed, {}
        number = 0
        for name in changed:
            node = self.nodes[name]
            for place, (group, takes) in enumerate(zip(self._groups, self._takes, strict=True)):
                if name in takes:
                    if number % MEASURED_A_STEP == 0:
                        yield
                    number += 1
                    now = node.takes(group.shape)
                    self._room[place] += now - takes[name]
                    takes[name] = now

    def _roomiest(self) -> Generator[None, None, dict[str, None]]:
        """Return for each group as many nodes as it has members: those that take most of these."""
        found: dict[str, None] = {}
        for takes, wanted in zip(self._takes, self._wanted, strict=True):
            yield
            most = nlargest(wanted, ((much, name) for name, much in takes.items() if much))
            found |= dict.fromkeys(name for _, name in most)
        return found

    def _fit(self, names: Collection[str]) -> Generator[None, None, Fit | None]:
        """Return slots on some of the nodes."""
        wanted, limit = self._wanted, self._limit
        steps = STEPS_A_MEMBER * sum(wanted) + STEPS_A_NODE * len(names)
        steps += STEPS_A_RANK * ranks_to_place(self._area, min(sum(wanted), len(names)))
        if not limit.spend(steps):
            return None
        candidates = []
        for group, takes, ranks in zip(self._groups, self._takes, self._ranks, strict=True):
            yield
            here = Candidates(group, {name: takes[name] for name in names if name in takes})
            here.room = sum(here.takes.values())
            yield from self._rank(here, ranks)
            here.ranks = yield from sorted_in_steps(
                [ranks[name] for name in here.takes if name in ranks]
            )
            candidates.append(here)
        budget = Budget()
        hints = [()] * len(wanted)
        found = yield from fit(self._left, Area("", candidates), wanted, hints, budget)
        limit.spend(budget.used)
        limit.gave_up |= budget.gave_up
        return found

    def _rank(self, here: Candidates, ranks: dict[str, Rank]) -> Generator[None, None, None]:
        """Rank the nodes that have room and no rank."""
        shape = here.group.shape
        missing = [name for name, most in here.takes.items() if most and name not in ranks]
        for number, name in enumerate(missing):
            if number % MEASURED_A_STEP == 0:
                yield
            account = self._left.account(name)
            cards = FreeCards(account) if account is not None else None
            rank = rank_of(self._policies, shape, cards, here.takes[name], name)
            if rank is not None:
                ranks[name] = rank


def _needed(
    groups: Sequence[EqualMembers], takes: Sequence[Mapping[str, int]]
) -> Generator[None, None, list[int]]:
    """Return for each group how many of its members there must be room for, beside no others.

    They are as many as the members of all groups that take no less and may go to the same nodes, if
    each two of these can be compared. Else some are not counted: sorting takes much less time than
    to compare each with each.
    """
    alike: dict[Hashable, dict[Need, list[int]]] = {}
    for number, (group, names) in enumerate(zip(groups, takes, strict=True)):
        yield
        alike.setdefault(frozenset(names), {}).setdefault(group.shape.need, []).append(number)
    found = [0] * len(groups)
    for of_needs in alike.values():
        larger: Need | None = None
        members = 0
        for need in sorted(of_needs, key=_size, reverse=True):
            yield
            if larger is None or not _takes_less(need, larger):
                members = 0
            members += sum(len(groups[number].pods) for number in of_needs[need])
            larger = need
            for number in of_needs[need]:
                found[number] = members
    return found


def _size(need: Need) -> tuple[int, int, bool, Requests]:
    return need.card_count, need.units, need.is_apart, need.requests


def _takes_less(less: Need, more: Need) -> bool:
    """Return whether one member takes nothing that the other does not take, on the same cards."""
    amounts = dict(more.requests)
    return (
        less.cards == more.cards
        and less.is_apart == more.is_apart
        and less.units <= more.units
        and less.card_count <= more.card_count
        and all(much <= amounts.get(name, 0) for name, much in less.requests)
    )


class _Left(Besides):
    """The nodes as they are left. ``accounts`` are those that were asked for since a change."""

    def __init__(self, world: World, nodes: Mapping[str, NodeRoom]) -> None:
        super().__init__(world, (), 0)
        self.accounts: dict[str, NodeAccount | None] = {}
        self._rooms = nodes

    def account(self, name: str) -> NodeAccount | None:
        if name not in self.accounts:
            self.accounts[name] = self._rooms[name].account()
        return self.accounts[name]

    def left(self, name: str) -> tuple[NodeAccount | None, Mapping[str, int] | None]:
        return self.account(name), self._rooms[name].amounts
