"""No namespace is ever above its quota, and in the end everything is placed that fits."""

import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from gpushare.quota.quota import Quota, parse
from localcluster.errors import ApiError, LocalClusterError
from localcluster.seats import Program
from localcluster.wait import wait_until
from tests.trials.queue.history import Seen
from tests.trials.queue.placed import unplaced
from tests.trials.queue.stage import MODELS, Described, Stage, gang

NAMESPACES: Final = 20
UNLIMITED: Final = 1  # of them, without a quota
UNQUEUED: Final = 5  # of them, without the label
LEAST, MOST = 24, 120  # units of a quota
SIZES: Final = 2, 4, 6, 8, 12, 16
PRESENT: Final = 350  # pods at a time, of which most wait
EVERY_SECONDS: Final = 0.06  # a pod or gang is created or ended
KILL_SECONDS: Final = 5.0, 12.0
CHANGE_SECONDS: Final = 2.0  # a quota is changed
GANGS, GATED, TWO_CARDS, KEPT, SLOW, SUCCEEDS = 0.15, 0.6, 0.1, 0.15, 0.4, 0.2
MOST_GRACE: Final = 5
LARGEST_GANG: Final = 6
# After the last kill, until all is placed that fits: what did not come rests for up to 300 s.
SETTLED_SECONDS: Final = 330.0


@dataclass
class Quotas:
    """Create, end and kill for some minutes."""

    stage: Stage
    seconds: float
    rng: random.Random
    killed: Counter[str] = field(default_factory=Counter)
    _now: dict[str, Quota | None] = field(default_factory=dict)  # quotas
    _made: int = 0

    def play(self) -> str:
        stage, rng = self.stage, self.rng
        for number in range(NAMESPACES):
            name = f"team-{number:02}"
            text = None if number < UNLIMITED else self._quota()
            stage.namespace(name, text, is_queued=number >= UNQUEUED)
            self._now[name] = None if text is None else parse(text)
        until = time.monotonic() + self.seconds
        kill_at = time.monotonic() + rng.uniform(*KILL_SECONDS)
        change_at = time.monotonic() + CHANGE_SECONDS
        while (began := time.monotonic()) < until:
            present = stage.history.present()
            if len(present) < PRESENT:
                self._create()
            else:
                self._end(present)
            if began > change_at:
                self._change_quota()
                change_at = began + CHANGE_SECONDS
            if began > kill_at:
                self._kill()
                kill_at = began + rng.uniform(*KILL_SECONDS)
            time.sleep(max(0.0, EVERY_SECONDS - (time.monotonic() - began)))
        ended = time.monotonic()
        wait_until("all to be placed that fits", self._unplaced, seconds=SETTLED_SECONDS)
        settled = time.monotonic() - ended
        stage.wait_whole()
        pods = list(stage.history.pods.values())
        kills = ", ".join(f"{number} x {name}" for name, number in self.killed.items())
        waiting = sum(each.is_waiting for each in stage.history.present())
        return (
            f"{len(pods)} pods in {NAMESPACES} namespaces, {sum(e.is_bound for e in pods)} bound, "
            f"{sum(e.was_gated for e in pods)} gated, {len({e.gang for e in pods} - {''})} gangs; "
            f"{stage.quotas.changes()} changes of quotas; {self.killed.total()} kills ({kills}); "
            f"{settled:.0f} s after the last of them all was placed that fits, {waiting} wait"
        )

    def _quota(self) -> str:
        units = self.rng.randint(LEAST, MOST)
        if self.rng.random() < 0.4:
            model = self.rng.choice(MODELS)
            of_model = f"{model}={self.rng.randint(LEAST // 2, units)}"
            return of_model if self.rng.random() < 0.3 else f"{units},{model}={units // 2}"
        return str(units)

    def _create(self) -> None:
        rng, number = self.rng, self._made
        self._made += 1
        namespace = rng.choice(list(self._now))
        units = rng.choice(SIZES)
        more = {
            "is_gated": rng.random() < GATED,
            "cards": 2 if rng.random() < TWO_CARDS else 1,
            "is_kept": rng.random() < KEPT,
            "grace": rng.randint(1, MOST_GRACE) if rng.random() < SLOW else 0,
        }
        if rng.random() < GANGS:
            size = rng.randint(2, LARGEST_GANG)
            least = size - (size > 2 and rng.random() < 0.3)
            self.stage.create(*gang(f"g{number}", namespace, size, units, minimum=least, **more))
        else:
            self.stage.create(Described(f"s{number}", namespace, units, **more))

    def _end(self, present: list[Seen]) -> None:
        """End a pod, or all pods of a gang; most often one that is bound."""
        bound = [each for each in present if each.is_bound and not (each.is_ending or each.is_gone)]
        some = bound if bound and self.rng.random() < 0.8 else present
        chosen = self.rng.choice(some)
        group = [e for e in present if e.gang == chosen.gang] if chosen.gang else [chosen]
        if chosen.is_bound and not chosen.gang and self.rng.random() < SUCCEEDS:
            try:
                self.stage.succeed(chosen.namespace, chosen.name)
            except ApiError:
                return  # it has just been deleted
        for each in group:
            grace = self.rng.randint(0, MOST_GRACE)
            self.stage.delete((each.namespace, each.name), grace=grace)

    def _change_quota(self) -> None:
        name = self.rng.choice(list(self._now)[UNLIMITED:])
        text = self._quota()
        self._now[name] = parse(text)
        self.stage.set_quota(name, text)

    def _kill(self) -> None:
        """Kill the extender that decides, the kube-scheduler that leads, or both."""
        victims: list[Program] = ["extender", "kube-scheduler"]
        if self.rng.random() < 0.75:
            victims = [self.rng.choice(victims)]
        seats = self.stage.seats
        for program in victims:
            is_extender = program == "extender"
            seat = seats.leading_extender() if is_extender else seats.leading_scheduler()
            if seat is None:
                continue  # nobody leads since the last kill
            try:
                seats.kill(seat, program)
            except LocalClusterError:
                continue  # it is just being started again
            self.killed[program] += 1

    def _unplaced(self) -> str | None:
        history = self.stage.history
        return unplaced(history.present(), history.sizes, self._now, self.stage.models)
