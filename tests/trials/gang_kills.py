"""Random kills of the leading extender and kube-scheduler while gangs pass through the cluster."""

import random
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from localcluster.errors import LocalClusterError
from localcluster.seats import Program
from localcluster.wait import wait_until
from tests.cluster.gangs import UNITS
from tests.trials.gang_stage import ZONE_CARDS, Described, GangStage

KILL_SECONDS: Final = 0.5, 3.0  # of work between two kills
BOTH: Final = 0.25  # of the kills end both programs
PRESENT: Final = 16  # gangs at a time
LAST: Final = 0.9  # of the gangs are whole when the kills end
FEWEST, MOST = 4, 64  # members
HALF: Final = 0.5
ALL_SECONDS: Final = 120.0  # after the last kill, until all gangs have passed
PARTIAL_SECONDS: Final = 10.0
_LEASE: Final = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-scheduler"


def random_gangs(count: int, rng: random.Random) -> list[Described]:
    """Return gangs of 4 to 64 members, smaller ones more often; every other one is gated.

    Of every fifth, members use two GPUs; a quarter have a minimum below their size. Half of those
    for which a zone is large enough have to be in one.
    """
    found = []
    for number in range(count):
        size = round(FEWEST * (MOST / FEWEST) ** rng.random())
        minimum = size if rng.random() < 0.75 else -(-size * 3 // 4)
        units, cards = (4, 2) if rng.random() < 0.2 else (rng.choice((4, 8, UNITS)), 1)
        may_be_in_one = size * cards <= ZONE_CARDS * (UNITS // units)
        made = Described(
            f"g{number:03}",
            size,
            minimum,
            units,
            cards,
            is_gated=number % 2 == 1,
            in_one_zone=may_be_in_one and rng.random() < HALF,
        )
        found.append(made)
    return found


@dataclass
class RandomKills:
    stage: GangStage
    gangs: list[Described]
    rng: random.Random
    most_seconds: float
    killed: Counter[str] = field(default_factory=Counter)
    _passed: int = 0
    _caught: set[str] = field(default_factory=set)  # gangs that were partial at a kill
    _killed_at: str = ""  # since when the last kube-scheduler that was killed had led
    _ended: threading.Event = field(default_factory=threading.Event)

    def play(self) -> str:
        """Kill until most gangs have passed; return the figures."""
        passing = threading.Thread(target=self._pass_all, daemon=True)
        passing.start()
        began = time.monotonic()
        try:
            while self._passed < LAST * len(self.gangs):
                self._wait_for_work()
                time.sleep(self.rng.uniform(*KILL_SECONDS))
                if time.monotonic() - began > self.most_seconds:
                    self.stage.lost.append(f"only {self._passed} gangs were whole in time")
                    break
                self._kill()
            last_kill = time.monotonic()
            killing = last_kill - began
            passed = self._passed
            begun = list(self.stage.history.partial())
            self._wait_for_work()
            decides = time.monotonic()
            slowest = self._judge_partial(begun, decides) if begun else decides
            wait_until("all gangs to be whole", self._missing, seconds=ALL_SECONDS, interval=0.3)
        finally:
            self._ended.set()
            passing.join(60)
        members = sum(each.size for each in self.gangs)
        zoned = sum(each.in_one_zone for each in self.gangs)
        kills = ", ".join(f"{number} x {name}" for name, number in self.killed.items())
        return (
            f"{len(self.gangs)} gangs of {members} pods, {zoned} of them in one zone each; "
            f"{passed} whole in {killing:.0f} s with "
            f"{self.killed.total()} kills ({kills}); {len(self._caught)} partial at a kill, "
            f"{len(begun)} at the last one, none {slowest - last_kill:.1f} s after it, which is "
            f"{max(0.0, slowest - decides):.1f} s after others led; the longest time of a gang as "
            f"partial was {self._longest():.1f} s"
        )

    def _judge_partial(self, begun: list[str], decides: float) -> float:
        """Wait until these gangs are whole; return when the last one was."""
        history = self.stage.history

        def partial() -> str | None:
            return ", ".join(name for name in begun if not history.gang(name).is_whole) or None

        left = decides + PARTIAL_SECONDS - time.monotonic()
        try:
            wait_until("no gang to be partial", partial, seconds=left)
        except LocalClusterError as err:
            self.stage.lost.append(str(err))
            return time.monotonic()
        listed = self.stage.listed()
        for name in begun:
            if 0 < listed[name] < history.gang(name).minimum and not history.is_finished(name):
                self.stage.lost.append(f"{name}: a list has {listed[name]} of its members bound")
        return max(history.gang(name).whole_at for name in begun)

    def _missing(self) -> str | None:
        left = len(self.gangs) - self._passed
        return f"{left} are not; partial: {list(self.stage.history.partial())}" if left else None

    def _longest(self) -> float:
        found = (self.stage.history.gang(each.name) for each in self.gangs)
        return max(each.whole_at - each.begun_at for each in found)

    def _kill(self) -> None:
        """Kill the extender that decides, the kube-scheduler that leads, or both."""
        seats, rng = self.stage.seats, self.rng
        victims: tuple[Program, ...] = ("extender", "kube-scheduler")
        if rng.random() >= BOTH:
            victims = (rng.choice(victims),)
        self._caught.update(self.stage.history.partial())
        for program in victims:
            is_extender = program == "extender"
            seat = seats.leading_extender() if is_extender else seats.leading_scheduler()
            if not is_extender:
                self._killed_at = self._scheduler_leads_since()
            if seat is not None:
                with suppress(LocalClusterError):  # it has just ended
                    seats.kill(seat, program)
                    self.killed[program] += 1

    def _wait_for_work(self) -> None:
        """Wait until an extender decides and a kube-scheduler leads that was not killed."""
        self.stage.seats.wait_leading_extender()
        wait_until("a kube-scheduler to lead", self._no_scheduler, seconds=40)

    def _no_scheduler(self) -> str | None:
        return None if self._scheduler_leads_since() != self._killed_at else "none does"

    def _scheduler_leads_since(self) -> str:
        with self.stage.cluster.api() as api:
            return str(api.get(_LEASE)["spec"]["acquireTime"])

    def _pass_all(self) -> None:
        """Create the gangs, a limited number at a time, and delete each that is whole."""
        waiting, present = list(reversed(self.gangs)), list[str]()
        while not self._ended.is_set() and (waiting or present):
            for name in [each for each in present if self.stage.history.gang(each).is_whole]:
                self.stage.finish(name)
                present.remove(name)
                self._passed += 1
            if waiting and len(present) < PRESENT:
                described = waiting.pop()
                present.append(described.name)
                self.stage.create(described)
            else:
                time.sleep(0.05)
