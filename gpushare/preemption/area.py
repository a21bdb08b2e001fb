"""The candidates of one area, and how far down the priorities must go there (pure)."""

from collections.abc import Collection, Generator, Mapping
from dataclasses import dataclass
from typing import Final

from gpushare.preemption.candidates import Candidate, Class, Gang
from gpushare.preemption.node_room import Batch, batch_of
from gpushare.preemption.rooms import Room

BATCHES_A_STEP: Final = 16


@dataclass(slots=True, eq=False)
class GangHere:
    """A gang with members in the area: those that are ``here``."""

    gang: Gang
    here: list[Candidate]


class VictimArea:
    """``name`` is a zone, a node, or empty for all nodes.

    ``singles`` are by node and class, ``levels`` are those of all candidates, in rising order, and
    ``size`` is their number.
    """

    def __init__(
        self,
        name: str,
        room: Room,
        singles: Mapping[str, Mapping[Class, list[Candidate]]],
        gangs: Collection[GangHere],
    ) -> None:
        self.name, self.room, self.singles, self.gangs = name, room, singles, gangs
        levels = {level for classes in singles.values() for level, _ in classes}
        self.levels = sorted(levels.union(each.gang.level for each in gangs))
        self.size = sum(len(here) for classes in singles.values() for here in classes.values())
        self.size += sum(len(each.here) for each in gangs)
        self._batches: dict[tuple[str, Class], Batch] = {}

    def free(self) -> Generator[None, None, None]:
        """Free the memory in steps: at once it would take longer than a step."""
        self.gangs = ()
        for part in (self._batches, self.room.nodes):
            while part:
                part.popitem()
                if len(part) % BATCHES_A_STEP == 0:
                    yield

    def batch(self, node: str, of: Class) -> Batch:
        """Return all singles of a class on a node."""
        found = self._batches.get((node, of))
        if found is None:
            found = self._batches[node, of] = batch_of(self.singles[node][of])
        return found

    def lowest_level(self) -> Generator[None, None, int | None]:
        """Return the lowest level so that the members fit once all up to it are gone, if any.

        All members of a gang of which only some may go count as gone: the answer may be too low.
        """
        yield from self.room.reset()
        for level in self.levels:
            yield from self._let_go(level)
            if (yield from self.room.fits()):
                return level
        return None

    def _let_go(self, level: int) -> Generator[None, None, None]:
        """Let the candidates of a level go too."""
        number = 0
        for node, classes in self.singles.items():
            for of in classes:
                if of[0] == level:
                    number += 1
                    if number % BATCHES_A_STEP == 0:
                        yield
                    self.room.change(self.batch(node, of), 1)
        for each in self.gangs:
            if each.gang.level == level:
                yield
                gone = [c for c in each.here if each.gang.may_go or c.uid in each.gang.loose]
                self.room.change(batch_of(gone), 1)
