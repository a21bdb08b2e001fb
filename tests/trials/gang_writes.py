"""One kill of the leader at each write by which a gang is released and bound."""

import time
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from localcluster.wait import wait_until
from tests.fakes.apiserver_proxy import Asked, Fault, Kind, Proxy, binds
from tests.trials.gang_stage import PART_CARDS, Described, GangStage

MEMBERS: Final = PART_CARDS
UNITS: Final = 12  # one member a GPU
REACHED_SECONDS: Final = 30.0
WHOLE_SECONDS: Final = 60.0
LANDED_SECONDS: Final = 0.3  # what the API server has of the leader is shown by a list


class Writes:
    """Numbers releases and binds of pods by name; what is tried again keeps its number."""

    def __init__(self, prefix: str, *, is_gated: bool) -> None:
        self._pods, self._is_gated = f"/pods/{prefix}-", is_gated
        self._numbers: dict[tuple[str, str], int] = {}

    def number(self, asked: Asked) -> int:
        """Return the number of a write, from 1; 0 for any other request."""
        if self._pods not in asked.path:
            return 0
        if not (binds(asked) or (self._is_gated and asked.method == "PATCH")):
            return 0
        return self._numbers.setdefault((asked.method, asked.path), len(self._numbers) + 1)


@dataclass
class Lane:
    """A part of the nodes with room for one gang; kills begin at the write ``first``.

    ``holder`` has the room, ``waits`` is to get it.
    """

    name: str
    part: str
    first: int
    is_gated: bool
    holder: str = ""
    waits: str = ""
    _made: int = 0

    def described(self) -> Described:
        """Describe the next gang."""
        self._made += 1
        name = f"{self.name}-{self._made}"
        return Described(name, MEMBERS, MEMBERS, UNITS, is_gated=self.is_gated, part=self.part)


@dataclass
class KillsAtWrites:
    """In each lane two gangs wait for the room of a third, which is then deleted.

    The leader is killed at a write for the gang that gets the room: either before it, with those
    before it done, or after it, with no answer to it. Later writes never arrive. Then one of the
    two gangs must become whole and the other have nothing: the one of which a member is bound, if
    one is. A kill is for all lanes, so that each lane waits only for a part of the takeovers.
    """

    stage: GangStage
    proxy: Proxy
    times: int
    _took: list[float] = field(default_factory=list)
    _begun: int = 0

    def play(self) -> str:
        """Go through all positions; return the figures."""
        stage = self.stage
        lanes = [
            Lane("ungated", "0", 0, is_gated=False),
            Lane("releases", "1", 0, is_gated=True),
            Lane("binds", "2", MEMBERS, is_gated=True),
        ]
        for lane in lanes:
            holder, waits = lane.described(), lane.described()
            lane.holder, lane.waits = holder.name, waits.name
            stage.create(holder)
            stage.wait_whole(holder.name, seconds=WHOLE_SECONDS)
            stage.create(waits)
        for again in range(self.times):
            for number in range(1, MEMBERS + 1):
                self._kill_at(number, lanes, is_after=(again + number) % 2 == 0)
        return (
            f"{len(lanes) * MEMBERS} positions x {self.times}, gangs of {MEMBERS}, {self._begun} "
            f"with members bound at the kill; whole {median(self._took):.1f} s after it, at most "
            f"{max(self._took):.1f} s"
        )

    def _kill_at(self, number: int, lanes: list[Lane], *, is_after: bool) -> None:
        stage, leader = self.stage, self.stage.seats.wait_leading_extender()
        others = [lane.described() for lane in lanes]
        stage.create(*others)
        faults = [self._fault(lane, lane.first + number, is_after=is_after) for lane in lanes]
        stage.finish(*(lane.holder for lane in lanes))

        def unreached() -> str | None:
            found = [lane.name for lane, each in zip(lanes, faults, strict=True) if not each.met]
            return ", ".join(found) or None

        wait_until(
            f"write {number} in each lane", unreached, seconds=REACHED_SECONDS, interval=0.005
        )
        if is_after:
            time.sleep(LANDED_SECONDS)
        stage.seats.kill(leader)
        killed_at = time.monotonic()
        self.proxy.heal()
        time.sleep(LANDED_SECONDS)
        bound = stage.listed()
        for lane, other in zip(lanes, others, strict=True):
            where = f"{lane.name}, {'after' if is_after else 'before'} write {lane.first + number}"
            names = (lane.waits, other.name)
            begun = [name for name in names if bound[name]]
            self._begun += len(begun)
            lane.holder = stage.wait_whole(*names, seconds=WHOLE_SECONDS)
            (lane.waits,) = {*names} - {lane.holder}
            self._took.append(stage.history.gang(lane.holder).whole_at - killed_at)
            if begun not in ([], [lane.holder]):
                stage.lost.append(f"{where}: {begun} had members bound, {lane.holder} is whole")
            if stage.history.gang(lane.waits).most:
                stage.lost.append(f"{where}: {lane.holder} is whole, {lane.waits} is bound in part")

    def _fault(self, lane: Lane, number: int, *, is_after: bool) -> Fault:
        """Stop the lane at a write; the fault that is returned is met there."""
        writes = Writes(lane.name, is_gated=lane.is_gated)

        def is_it(asked: Asked) -> bool:
            return writes.number(asked) == number

        def is_later(asked: Asked) -> bool:
            return writes.number(asked) >= number

        here = self.proxy.fault(Kind.UNANSWERED if is_after else Kind.HANG, is_it)
        self.proxy.fault(Kind.HANG, is_later, times=None)
        return here
