"""Know how many members of a shape each node takes, until something on the node changes (pure)."""

from bisect import bisect_left, insort
from collections.abc import Generator, Hashable, Iterable, Mapping, Sequence
from typing import Final

from gpushare.ledger.accounts import NodeAccount
from gpushare.placement.card_choice import FreeCards
from gpushare.placement.rank import Rank
from gpushare.placement.trial import World
from gpushare.planning import eligibility
from gpushare.planning.capacity import may_fit, members_on, rank_of
from gpushare.planning.shapes import Shape
from gpushare.planning.work import MOST_WORK, NodeNames, Seen, changed_of, seen_now
from gpushare.process.sorting import sorted_in_steps

MOST_ENTRIES: Final = MOST_WORK  # at about 300 bytes: the next plan of any gang is a quick one
LEAST_SHAPES: Final = 8
AT_ONCE: Final = 16  # changed nodes that are judged in one step
MOST_ROUNDS: Final = 20

Place = tuple[int, Rank | None]  # the members that an eligible node takes, and its rank if any


class ShapeIndex:
    """``takes`` has the eligible nodes, also full ones. ``ranks`` are of those with room, sorted.

    Both are as of ``seen``.
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.takes: dict[str, int] = {}
        self.ranks: list[Rank] = []
        self.seen: Seen | None = None
        self.fills = 0
        self._rank_of: dict[str, Rank] = {}

    def ranks_of(self, names: Iterable[str]) -> list[Rank]:
        """Return the ranks of those of the nodes that have room, best first."""
        return sorted([self._rank_of[name] for name in names if name in self._rank_of])

    def put(self, name: str, place: Place | None) -> None:
        """Enter what the node takes now; None if it is not eligible."""
        takes, now = place if place is not None else (0, None)
        if place is None:
            self.takes.pop(name, None)
        else:
            self.takes[name] = takes
        before = self._rank_of.get(name)
        if before == now:
            return
        if before is not None:
            del self.ranks[bisect_left(self.ranks, before)], self._rank_of[name]
        if now is not None:
            self._rank_of[name] = now
            insort(self.ranks, now)

    def fill(self, takes: dict[str, int], rank_of: dict[str, Rank], ranks: list[Rank]) -> None:
        """Enter all eligible nodes and their ranks, instead of those so far."""
        self.fills += 1
        self.takes, self._rank_of, self.ranks = takes, rank_of, ranks


class _Left:
    """What nodes have left, which is read once for all shapes, and again after a change."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._known: dict[str, tuple[FreeCards | None, Mapping[str, int] | None]] = {}
        self._seen = seen_now(world)

    def of(
        self, name: str, account: NodeAccount | None
    ) -> tuple[FreeCards | None, Mapping[str, int] | None]:
        """Return the free cards and other resources of a node; do not change them."""
        now = seen_now(self._world)
        if now != self._seen:
            for each in changed_of(self._world, self._seen, self._known):
                del self._known[each]
            self._seen = now
        found = self._known.get(name)
        if found is None:
            cards = FreeCards(account) if account is not None else None
            found = self._known[name] = cards, self._world.free_resources(name)
        return found


class ShapeIndexes:
    """The indexes of the shapes that were planned last, for one world."""

    def __init__(self, world: World) -> None:
        self.names = NodeNames(world)
        self._world, self._left = world, _Left(world)
        self._indexes: dict[Hashable, ShapeIndex] = {}  # last used one last

    def current(self, shapes: Sequence[Shape]) -> Generator[None, None, list[ShapeIndex]]:
        """Return the indexes of shapes as of now, in short steps. Do not change them."""
        found: list[ShapeIndex] = []
        for shape in shapes:
            yield
            index = yield from self._current(shape)
            found.append(index)
        self._drop_longest_unused()
        return found

    def _current(self, shape: Shape) -> Generator[None, None, ShapeIndex]:
        index = self._indexes.pop(shape.key, None) or ShapeIndex(shape)
        self._indexes[shape.key] = index
        world = self._world
        ledger, resources = world.ledger.changes, world.resource_changes
        for _ in range(MOST_ROUNDS):
            seen, fills = index.seen, index.fills
            now = ledger.now, resources.now
            if seen == now:
                break
            one = ledger.since(seen[0]) if seen is not None else None
            two = resources.since(seen[1]) if seen is not None else None
            # Another plan may use the index between steps. Entries only become newer, except if it
            # was filled: then what is entered here may be older.
            if one is None or two is None:
                filled = yield from self._all(shape)
                if index.fills == fills:
                    index.fill(*filled)
                    index.seen = now
            else:
                yield from self._renew(index, {*one, *two})
                if index.fills == fills:
                    index.seen = max(now, index.seen or now)
        return index

    def _place(self, shape: Shape, name: str) -> Place | None:
        """Return how many members a node takes now, and its rank; None if it is not eligible."""
        world = self._world
        account = world.ledger.account(name)
        if eligibility.why_not(world, name, shape, account) is not None:
            return None
        if account is not None and not may_fit(shape, account):
            return 0, None
        cards, free = self._left.of(name, account)
        if free is None:
            return None
        takes = members_on(shape, cards, free)
        if not takes:
            return 0, None
        return takes, rank_of(world.policies, shape, cards, takes, name)

    def _all(
        self, shape: Shape
    ) -> Generator[None, None, tuple[dict[str, int], dict[str, Rank], list[Rank]]]:
        """Return what ``ShapeIndex.fill`` takes, as of now."""
        yield
        takes: dict[str, int] = {}
        rank_of: dict[str, Rank] = {}
        for name in list(self.names.of(shape)):
            yield
            place = self._place(shape, name)
            if place is not None:
                takes[name] = place[0]
                if place[1] is not None:
                    rank_of[name] = place[1]
        ranks = yield from sorted_in_steps(list(rank_of.values()))
        return takes, rank_of, ranks

    def _renew(self, index: ShapeIndex, changed: set[str]) -> Generator[None, None, None]:
        shape = index.shape
        for number, name in enumerate(changed, 1):
            if shape.named is None or name in shape.named:
                index.put(name, self._place(shape, name))
            if number % AT_ONCE == 0:
                yield

    def _drop_longest_unused(self) -> None:
        indexes = self._indexes
        entries = sum(len(index.takes) for index in indexes.values())
        while len(indexes) > LEAST_SHAPES and entries > MOST_ENTRIES:
            oldest = next(iter(indexes))
            entries -= len(indexes.pop(oldest).takes)
