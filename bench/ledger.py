"""Measures the CPU that a member of a large gang costs the ledger when it is seen bound.

    python -m bench.ledger

A hold has a slot for each of 1,024 members, each on its own node. The floor is a bound pod for
which nothing is held. Both are seen alternately, so that other load affects both.
"""

import gc
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from bench.figures import note, note_ratio
from gpushare.cards.model import Share
from gpushare.ledger.holds import Hold, Slot
from gpushare.ledger.ledger import Ledger
from tests.builders import stock

MEMBERS: Final = 1024
CARD_UNITS: Final = 80
REQUESTS: Final = (("cpu", 1000), ("memory", 2**40), ("pods", 1000))


def main() -> None:
    ledger = Ledger()
    for number in range(MEMBERS):
        ledger.set_inventory(f"n{number}", stock(*[CARD_UNITS] * 8))
    slots = (Slot(f"n{i}", ("GPU-0",), 8, f"member-{i}", REQUESTS) for i in range(MEMBERS))
    hold = Hold("gang", tuple(slots), 1.0)
    gc.collect()
    gc.freeze()  # as the program does once it has listed
    taking = _milliseconds(partial(ledger.keep, hold))
    for number in range(MEMBERS):
        ledger.account(f"n{number}")
    seen = ledger.changes.now
    floor: list[float] = []
    members: list[float] = []
    for number in range(MEMBERS):
        node = f"n{number}"
        alone = Share(f"alone-{number}", "default", f"alone-{number}", node, 8, ("GPU-1",))
        member = Share(f"member-{number}", "default", f"member-{number}", node, 8, ("GPU-0",))
        for share, took in ((alone, floor), (member, members))[:: 1 if number % 2 else -1]:
            took.append(_milliseconds(partial(ledger.put_share, share)))
    assert ledger.hold_of("gang") is None
    assert ledger.changes.now - seen <= 3 * MEMBERS, "a member touches other nodes"
    cost, alone_cost = statistics.median(members), statistics.median(floor)
    print(f"a hold of {MEMBERS} slots on as many nodes is taken in {taking:.1f} ms")
    print(f"{'a pod seen bound, nothing held':<34} {alone_cost * 1000:7.1f} us")
    print(f"{'a member seen bound':<34} {cost * 1000:7.1f} us   {cost / alone_cost:.1f} x")
    print(f"{'the slowest of them':<34} {max(members) * 1000:7.1f} us")
    note("member", cost, f"{MEMBERS} members, the hold taken in {taking:.1f} ms")
    note_ratio("member to floor", cost * 1000, alone_cost * 1000, "us")


def _milliseconds(act: Callable[[], object]) -> float:
    began = time.thread_time()
    act()
    return (time.thread_time() - began) * 1000


if __name__ == "__main__":
    main()
