"""Whether members fit in an area while some pods count as gone (pure).

For members of one shape this is a sum over the nodes. If they differ, sums are a necessary
condition, and a plan decides.
"""

from collections.abc import Generator, Mapping
from typing import Final, Protocol

from gpushare.ledger.accounts import NodeAccount
from gpushare.placement.card_choice import FreeCards
from gpushare.placement.rank import Rank
from gpushare.placement.trial import World
from gpushare.planning.areas import Area, Candidates
from gpushare.planning.capacity import rank_of
from gpushare.planning.draft import Besides
from gpushare.planning.fit import fit
from gpushare.planning.search.budget import Budget
from gpushare.planning.shapes import Shape
from gpushare.preemption.node_room import Batch, NodeRoom
from gpushare.process.sorting import sorted_in_steps

STEPS_A_MEMBER: Final = 30  # about 1 us each
NODES_A_STEP: Final = 16


class Room(Protocol):
    """``nodes`` are those that are eligible. ``is_quick``: ``fits`` takes no time."""

    nodes: Mapping[str, NodeRoom]
    is_quick: bool

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

    def __init__(self, nodes: Mapping[str, NodeRoom], shape: Shape, wanted: int) -> None:
        self.nodes, self._shape, self._wanted = nodes, shape, wanted
        self._takes: dict[str, int] = {}
        self._first = {name: room.takes(shape) for name, room in nodes.items()}
        self._room = 0

    def reset(self) -> Generator[None, None, None]:
        for number, room in enumerate(self.nodes.values()):
            if number % NODES_A_STEP == 0:
                yield
            room.reset()
        self._takes = dict(self._first)
        self._room = sum(self._takes.values())

    def change(self, batch: Batch, sign: int) -> None:
        nodes, takes, shape = self.nodes, self._takes, self._shape
        for load in batch.loads:
            name = load.node
            node = nodes.get(name)
            if node is not None:
                node.change(load, sign)
                now = node.takes(shape)
                self._room += now - takes[name]
                takes[name] = now

    def fits(self) -> Generator[None, None, bool]:
        yield from ()
        return self._room >= self._wanted

    def gain(self, batch: Batch) -> int:
        before = self._room
        self.change(batch, -1)
        found = before - self._room
        self.change(batch, 1)
        return found


class SeveralShapes:
    """Members of several shapes. ``gave_up``: an answer may have been no although they fit.

    ``limit`` is for all searches of one kind together.
    """

    is_quick = False

    def __init__(
        self, world: World, nodes: Mapping[str, NodeRoom], area: Area, limit: Budget
    ) -> None:
        self.nodes = nodes
        self._limit = limit
        self._policies = world.policies
        self._wanted = [here.wanted for here in area.candidates]
        self._area = Area(
            area.zone,
            [Candidates(here.group, dict.fromkeys(here.takes, 0)) for here in area.candidates],
        )
        for here in self._area.candidates:
            for name in here.takes.keys() - nodes.keys():
                del here.takes[name]
        self._ranks: list[dict[str, Rank]] = [{} for _ in area.candidates]
        self._left = _Left(world, nodes)
        self._changed = set(nodes)

    def reset(self) -> Generator[None, None, None]:
        for number, room in enumerate(self.nodes.values()):
            if number % NODES_A_STEP == 0:
                yield
            room.reset()
        self._changed.update(self.nodes)
        self._left.accounts.clear()

    def change(self, batch: Batch, sign: int) -> None:
        for load in batch.loads:
            node = self.nodes.get(load.node)
            if node is not None:
                node.change(load, sign)
                self._changed.add(load.node)
                self._left.accounts.pop(load.node, None)

    def fits(self) -> Generator[None, None, bool]:
        yield from self._measure()
        area, wanted, limit = self._area, self._wanted, self._limit
        if any(here.room < much for here, much in zip(area.candidates, wanted, strict=True)):
            return False
        if not limit.spend(STEPS_A_MEMBER * sum(wanted)):
            return False
        for here, ranks in zip(area.candidates, self._ranks, strict=True):
            here.ranks = yield from sorted_in_steps(list(ranks.values()))
        budget = Budget()
        found = yield from fit(self._left, area, wanted, [()] * len(wanted), budget)
        limit.spend(budget.used)
        limit.gave_up |= budget.gave_up
        return found is not None

    def gain(self, batch: Batch) -> int:
        return sum(each.units for each in batch.candidates)

    def _measure(self) -> Generator[None, None, None]:
        """Count again how many members the changed nodes take."""
        changed, self._changed = self._changed, set()
        for name in changed:
            yield
            room = self.nodes[name]
            for here, ranks in zip(self._area.candidates, self._ranks, strict=True):
                if name not in here.takes:
                    continue
                shape = here.group.shape
                takes = room.takes(shape)
                here.room += takes - here.takes[name]
                here.takes[name] = takes
                ranks.pop(name, None)
                account = self._left.account(name) if takes else None
                cards = FreeCards(account) if account is not None else None
                rank = rank_of(self._policies, shape, cards, takes, name) if takes else None
                if rank is not None:
                    ranks[name] = rank


class _Left(Besides):
    """The nodes as they are left. ``accounts`` are those that were asked for since a change."""

    def __init__(self, world: World, nodes: Mapping[str, NodeRoom]) -> None:
        super().__init__(world, "", (), 0)
        self.accounts: dict[str, NodeAccount | None] = {}
        self._rooms = nodes

    def account(self, name: str) -> NodeAccount | None:
        if name not in self.accounts:
            self.accounts[name] = self._rooms[name].account()
        return self.accounts[name]

    def left(self, name: str) -> tuple[NodeAccount | None, Mapping[str, int] | None]:
        return self.account(name), self._rooms[name].amounts
