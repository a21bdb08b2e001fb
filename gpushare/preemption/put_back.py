"""Choose victims of one area: let all candidates go, and put back who is not needed (pure)."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import comb
from typing import Final

from gpushare.planning.draft import Fit
from gpushare.preemption.area import BATCHES_A_STEP, GangHere, VictimArea
from gpushare.preemption.candidates import Candidate, Class, Rank
from gpushare.preemption.node_room import Batch, batch_of
from gpushare.process.sorting import sorted_in_steps

CANDIDATES_A_STEP: Final = 128
MOST_CHOICES: Final = 64  # of members of a gang that are tried, if not any of them may be victims

_NOBODY: Final[frozenset[str]] = frozenset()


@dataclass(frozen=True, slots=True)
class Order:
    """Who is put back first: the uids in ``first``, and of equals the larger ones if ``larger``.

    Those in ``kept`` never go.
    """

    kept: frozenset[str] = _NOBODY
    first: frozenset[str] = _NOBODY
    larger: bool = False


@dataclass(slots=True, eq=False)
class Outcome:
    """Each of the ``victims`` is needed. ``excess`` are too many of a gang that may not go.

    ``slots`` are those of the members without the victims, if they were planned already.
    """

    victims: list[Candidate] = field(default_factory=list)
    excess: list[Candidate] = field(default_factory=list)
    slots: Fit | None = None


@dataclass(slots=True, eq=False)
class _Part:
    """Candidates that are put back before those of the next part: gangs and then singles."""

    gangs: list["_GangUnit"] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _GangUnit:
    """``gone`` are the members that go at first: all that are here, or those that are loose."""

    whole: GangHere
    may_go: bool
    gone: list[Candidate]
    loose: list[Candidate]

    @property
    def dearness(self) -> tuple[int, tuple[str, str, str]]:
        """Sort those first of which most members would go at least, and then the oldest."""
        gang = self.whole.gang
        return -(1 if self.loose else len(gang.members)), gang.age


def put_back(area: VictimArea, level: int, order: Order) -> Generator[None, None, Outcome | None]:
    """Return victims up to a level; None if the members do not fit even if all of them go.

    The dearest are put back first: those of the highest level, then those that take too long to
    end, then those without a hint, gangs before single pods, and large gangs without surplus before
    others. Of single pods those come first on whose node many make room for few members, then the
    smallest, then those that may take longest to end, then those that exist longest.
    """
    return (yield from _PutBack(area, level, order).run())


class _PutBack:
    def __init__(self, area: VictimArea, level: int, order: Order) -> None:
        self._area, self._level, self._order = area, level, order
        self._room = area.room
        self._outcome = Outcome()

    def run(self) -> Generator[None, None, Outcome | None]:
        yield from self._room.reset()
        parts = yield from self._let_go()
        if not (yield from self._room.fits()):
            return None
        for key in sorted(parts):
            part = parts.pop(key)
            keys = [(*unit.dearness, number) for number, unit in enumerate(part.gangs)]
            for *_, number in (yield from sorted_in_steps(keys)):
                yield from self._put_back_gang(part.gangs[number])
            yield from self._put_back_singles(part.batches)
        self._outcome.slots = self._room.found
        return self._outcome

    def _let_go(self) -> Generator[None, None, dict[tuple[bool, int, Rank], _Part]]:
        """Let everybody go who may; return them in parts, by what sorts these."""
        parts: dict[tuple[bool, int, Rank], _Part] = {}
        kept, first = self._order.kept, self._order.first
        number = 0
        for node, classes in self._area.singles.items():
            for of, here in classes.items():
                if of[0] > self._level:
                    continue
                batches = {False: self._area.batch(node, of)}
                if kept or first:
                    batches = _split(here, self._order)
                for is_first, batch in batches.items():
                    number += 1
                    if number % BATCHES_A_STEP == 0:
                        yield
                    self._room.change(batch, 1)
                    parts.setdefault(_key(of, is_first), _Part()).batches.append(batch)
        for each in self._area.gangs:
            yield
            unit = self._gang_unit(each)
            if each.gang.level <= self._level and unit.gone:
                self._room.change(batch_of(unit.gone), 1)
                is_first = any(member.uid in first for member in unit.gone)
                key = _key((each.gang.level, each.gang.rank), is_first)
                parts.setdefault(key, _Part()).gangs.append(unit)
        return parts

    def _gang_unit(self, each: GangHere) -> _GangUnit:
        gang, kept = each.gang, self._order.kept
        may_go = gang.may_go and not (kept and any(c.uid in kept for c in gang.members))
        loose = []
        if gang.surplus:
            loose = [c for c in each.here if c.uid in gang.loose and c.uid not in kept]
        return _GangUnit(each, may_go, each.here if may_go else loose, loose)

    def _put_back_gang(self, unit: _GangUnit) -> Generator[None, None, None]:
        """Keep the gang, or all but its surplus, or nobody of it."""
        room, victims = self._room, self._outcome.victims
        if not (yield from self._keep([batch_of(unit.gone)])):
            return
        left: list[Candidate] | None = None
        firm = _without(unit.gone, unit.loose)
        if unit.loose and not (firm and (yield from self._keep([batch_of(firm)]))):
            left = yield from self._put_back_some(unit.loose)
            if len(left) > unit.whole.gang.surplus:
                left = (yield from self._choose(unit, left)) or left
        if left is not None and len(left) <= unit.whole.gang.surplus:
            victims += left
        elif unit.may_go:
            if left is not None:
                room.change(batch_of(_without(unit.gone, left)), 1)
            victims += unit.whole.gang.members
        elif left is not None:
            victims += left
            self._outcome.excess = left

    def _choose(
        self, unit: _GangUnit, left: list[Candidate]
    ) -> Generator[None, None, list[Candidate] | None]:
        """Return members whose surplus is enough; None if others than those ``left`` are not."""
        room, surplus = self._room, unit.whole.gang.surplus
        if comb(len(unit.loose), surplus) > MOST_CHOICES:
            return None
        room.change(batch_of(left), -1)
        for chosen in combinations(sorted(unit.loose, key=lambda c: not c.is_hinted), surplus):
            yield
            batch = batch_of(chosen)
            room.change(batch, 1)
            if (yield from room.fits()):
                return (yield from self._put_back_some(list(chosen)))
            room.change(batch, -1)
        room.change(batch_of(left), 1)
        return None

    def _put_back_singles(self, batches: Sequence[Batch]) -> Generator[None, None, None]:
        """Put back all of a node at once where that is possible, and then one by one."""
        if len(batches) > 1:
            keys = []
            for number, batch in enumerate(batches):
                if number % BATCHES_A_STEP == 0:
                    yield
                keys.append((*self._dearness(batch), batch.loads[0].node, number))
            in_order = yield from sorted_in_steps(keys)
            batches = yield from self._keep([batches[key[-1]] for key in in_order])
        left = [each for batch in batches for each in batch.candidates]
        self._outcome.victims += yield from self._put_back_some(left)

    def _put_back_some(
        self, candidates: Sequence[Candidate]
    ) -> Generator[None, None, list[Candidate]]:
        """Put back one by one who is not needed; return the others."""
        sign = -1 if self._order.larger else 1
        keys = []
        for number, each in enumerate(candidates):
            if number % CANDIDATES_A_STEP == 0:
                yield
            grace = each.pod.grace_seconds
            keys.append((each.is_hinted, sign * each.units, -grace, each.age, number))
        in_order = yield from sorted_in_steps(keys)
        batches = []
        for number, key in enumerate(in_order):
            if number % CANDIDATES_A_STEP == 0:
                yield
            batches.append(batch_of((candidates[key[-1]],)))
        left = yield from self._keep(batches)
        return [batch.candidates[0] for batch in left]

    def _dearness(self, batch: Batch) -> tuple[float, int, str]:
        """Sort the nodes first where many pods make room for few members."""
        gain = self._room.gain(batch)
        pods = batch.candidates
        since = min([each.pod.metadata.creation_timestamp or "" for each in pods])
        return (-len(pods) / gain if gain else float("-inf")), batch.loads[0].units, since

    def _keep(self, batches: Sequence[Batch]) -> Generator[None, None, list[Batch]]:
        """Put back in this order all that are not needed; return the others."""
        if not self._room.is_quick:
            return (yield from self._keep_halves(batches, is_too_much=False))
        left, room = [], self._room
        for number, batch in enumerate(batches):
            if number % BATCHES_A_STEP == 0:
                yield
            room.change(batch, -1)
            if not (yield from room.fits()):
                room.change(batch, 1)
                left.append(batch)
        return left

    def _keep_halves(
        self, batches: Sequence[Batch], *, is_too_much: bool
    ) -> Generator[None, None, list[Batch]]:
        """Do the same with fewer questions. ``is_too_much``: not all can be put back."""
        if not batches:
            return []
        if not is_too_much:
            yield from self._change_all(batches, -1)
            if (yield from self._room.fits()):
                return []
            yield from self._change_all(batches, 1)
        if len(batches) == 1:
            return list(batches)
        half = len(batches) // 2
        left = yield from self._keep_halves(batches[:half], is_too_much=False)
        rest = yield from self._keep_halves(batches[half:], is_too_much=not left)
        return left + rest

    def _change_all(self, batches: Sequence[Batch], sign: int) -> Generator[None, None, None]:
        for number, batch in enumerate(batches):
            if number % BATCHES_A_STEP == 0:
                yield
            self._room.change(batch, sign)


def _key(of: Class, is_first: bool) -> tuple[bool, int, Rank]:
    level, rank = of
    return not is_first, -level, rank


def _split(here: Sequence[Candidate], order: Order) -> dict[bool, Batch]:
    """Return those of one node and class that may go, by whether they are put back first."""
    found: dict[bool, list[Candidate]] = {}
    for each in here:
        uid = each.uid
        if uid not in order.kept:
            found.setdefault(uid in order.first, []).append(each)
    return {is_first: batch_of(some) for is_first, some in found.items()}


def _without(some: Sequence[Candidate], others: Sequence[Candidate]) -> list[Candidate]:
    uids = {each.uid for each in others}
    return [each for each in some if each.uid not in uids]
