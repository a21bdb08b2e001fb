"""No two leaders' writes overlap: replicas simulated with the real election, in any interleaving.

Every step of a replica may be held up for any time (SIGSTOP, a slow API server, a lost answer), and
clocks run at their own rate within the drift that is allowed for. What the simulation grants, and
docs/operations.md says, is one thing: the bytes of a write leave within the write's time limit.
"""

import heapq
import itertools
from collections.abc import Callable, Generator

from hypothesis import given, settings
from hypothesis import strategies as st

from extender.binding.timing import WRITE_SECONDS
from extender.leadership.election import SETTLE_SECONDS
from gpushare.kube.lease import DRIFT, Election, Record, Timing

TIMING = Timing(6.0, 4.0, 1.0)
END = 60.0

Actor = Generator[float, None, None]


class World:
    """The API server, its clock, and what was written when."""

    def __init__(self, delays: list[float]) -> None:
        self.now = 0.0
        self.lease = Record("", "0", 1.0)
        self.begun: list[tuple[float, float, str]] = []  # begin, end of its time limit, by whom
        self.landed: list[tuple[float, float, str]] = []  # when, when the lease ended, by whom
        self.decided: list[tuple[float, str]] = []
        self.taken: list[tuple[float, str]] = []
        self._delays = itertools.cycle(delays)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def delay(self) -> float:
        return next(self._delays)

    def at(self, when: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), do))

    def run(self, *actors: Actor) -> None:
        for actor in actors:
            self._go_on(actor)
        while self._events and self._events[0][0] < END:
            self.now, _, do = heapq.heappop(self._events)
            do()

    def _go_on(self, actor: Actor) -> None:
        self.at(self.now + next(actor), lambda: self._go_on(actor))

    def put(self, seen: Record, holder: str, answers: list[Record]) -> None:
        if self.lease.version == seen.version:
            if self.lease.holder != holder:
                self.taken.append((self.now, holder))
            version = str(int(seen.version) + 1)
            self.lease = Record(holder, version, float(TIMING.written))
            answers.append(self.lease)


def replica(world: World, name: str, rate: float) -> Actor:
    """One process: it runs for the lease, and while it leads it writes as often as it may."""
    election, decides_from = Election(name, TIMING), -1.0

    def clock() -> float:
        return world.now * rate + len(name)

    while True:
        yield world.delay() + TIMING.retry / 2
        seen = world.lease
        yield world.delay()  # the answer is on its way
        election.observed(seen, clock())
        if election.step(clock()) == "wait":
            yield TIMING.retry
            continue
        led, sent_at, answers = election.leads(clock()), clock(), []
        there, back = world.delay(), world.delay()
        world.at(
            world.now + there, lambda seen=seen, answers=answers: world.put(seen, name, answers)
        )
        yield min(there + back, TIMING.attempt)
        if not answers:
            continue  # refused, or given up: it may land all the same
        election.wrote(answers[0], sent_at, clock())
        if not led:
            decides_from = clock() + SETTLE_SECONDS
        for _ in range(4):
            yield world.delay()
            if clock() >= decides_from and election.leads(clock()):
                world.decided.append((world.now, name))
                yield from write(world, election, clock, name)


def write(world: World, election: Election, clock: Callable[[], float], name: str) -> Actor:
    """Begin a write if it must end in time; it lands within its time limit at the API server."""
    if clock() + WRITE_SECONDS > election.ends_at:
        return
    ends_at = world.now + (election.ends_at - clock())
    world.begun.append((world.now, world.now + WRITE_SECONDS, name))
    # The caller gives up after its limit; what had left by then, the API server ends after its own.
    left, worked = min(world.delay(), WRITE_SECONDS), min(world.delay(), WRITE_SECONDS)
    when = world.now + left + worked
    world.at(when, lambda: world.landed.append((when, ends_at, name)))
    yield left


quick = st.lists(st.floats(0, 0.2), max_size=60)
slow = st.lists(st.one_of(st.floats(0, 3), st.floats(0, 15)), min_size=1, max_size=6)
delays = st.lists(st.one_of(quick, slow), min_size=1, max_size=6).map(
    lambda parts: [*itertools.chain.from_iterable(parts), 0.1]
)


@settings(max_examples=200, deadline=None)
@given(delays, st.lists(st.floats(1.0, 1.0 + DRIFT / 2), min_size=3, max_size=3))
def test_no_write_lands_once_another_replica_decides(delays, rates):
    world = World(delays)
    world.run(*(replica(world, "abc"[: n + 1], rate) for n, rate in enumerate(rates)))
    for when, ends_at, name in world.landed:
        assert when <= ends_at + WRITE_SECONDS + 1e-6
        later = [at for at, other in world.decided if other != name and at > ends_at]
        assert all(at >= when for at in later)
    for begin, end, name in world.begun:
        assert not any(begin < at < end - 1e-6 and other != name for at, other in world.taken)
    windows = sorted(world.begun)
    for (_, end, name), (begin, _, other) in itertools.pairwise(windows):
        assert name == other or begin >= end - 1e-6


def test_the_simulation_does_write_and_does_change_its_leader():
    world = World([*[0.01, 0.02, 0.1, 0.05] * 30, 15.0])
    world.run(*(replica(world, name, 1.0) for name in ("a", "bb", "ccc")))
    assert len({name for _, _, name in world.landed}) > 1
