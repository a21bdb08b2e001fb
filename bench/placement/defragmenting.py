"""Plans which pods of a full cluster would have to move so that whole cards become free."""

import random
from dataclasses import dataclass
from typing import Final

from bench.placement.books import Books, Setup
from bench.placement.inflation import arrivals
from bench.placement.peers import Elsewhere
from bench.placement.product import Gpushare
from bench.placement.trace import CARD, Trace
from extender.settings.configuration import Policy
from gpushare.defragment.movable import all_movable
from gpushare.defragment.planner import free_cards
from gpushare.process.time_slices import run_all

WHOLE: Final = 10**6  # cards: as many as possible


@dataclass(frozen=True, slots=True)
class Freed:
    """``cards`` become free by ``moves``; ``free`` are so before."""

    free: int
    cards: int
    moves: int


def defragment(trace: Trace, seed: int, ended: float) -> Freed:
    """Let the whole capacity be requested, end this part of the pods, and free all cards.

    All pods may move; those without GPU are on other nodes.
    """
    books = Books(trace)
    gpushare = Gpushare(trace, books, Policy())
    setup = Setup(trace, books, gpushare, Elsewhere())
    placed, asked = [], 0
    for number, pod in enumerate(arrivals(trace, seed)):
        if asked >= trace.capacity:
            break
        asked += pod.size
        uid = f"pod-{number}"
        if (place := setup.bind(pod, uid)) is not None:
            placed.append((pod, uid, place))
    draw = random.Random(seed)  # noqa: S311 - the same each time
    for pod, uid, place in draw.sample(placed, int(ended * len(placed))):
        setup.remove(pod, uid, place)
    state = gpushare.cluster.state
    free = sum(units == CARD for node in books.free for units in node)
    plan = run_all(free_cards(state, WHOLE, run_all(all_movable(state))))
    return Freed(free, len(plan.freed), len(plan.moves))
