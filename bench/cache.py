"""Measures what nodes and pods cost the extender: memory, start, and each event.

    python -m bench.cache [NODES CARDS PODS OTHERS]

The extender runs against a paper API server whose objects are as large as real ones. OTHERS are
pods that request no GPU memory. Without numbers there are 1,000 nodes with 64,000 pods; then 5,000
nodes with 50,000 pods, first without others and then with 50,000. The start is the time from exec
until /readyz, including 3 s in which a predecessor may still write. An event is a change of a bound
pod; its cost is the CPU time for many of them, divided by their number.
"""

import sys
import time
from typing import Final

from bench import program
from bench.figures import note
from bench.paper_api import pod
from bench.world import node_name

EVENTS: Final = 5000
EVENT_SECONDS: Final = 60.0
USUAL: Final = ((1000, 8, 64_000, 0), (5000, 2, 50_000, 0), (5000, 2, 50_000, 50_000))


def main() -> None:
    given = tuple(map(int, sys.argv[1:]))
    for nodes, cards, pods, others in (given,) if given else USUAL:
        measure(nodes, cards, pods, others)


def measure(nodes: int, cards: int, pods: int, others: int) -> None:
    suffix = " with others" if others else ""
    with program.running(nodes, cards, pods // nodes // cards, others // nodes) as extender:
        print(f"{nodes} nodes of {cards} cards, {pods} pods that hold units, {others} others")
        print(f"{'start to ready':<30} {extender.ready_seconds:8.1f} s      to reach: <= 15")
        print(f"{'CPU of it':<30} {extender.cpu_seconds():8.1f} s")
        time.sleep(1)
        print(f"{'memory':<30} {extender.mib('VmRSS'):8.0f} MiB    to reach: <= 500 MB")
        print(f"{'memory, highest':<30} {extender.mib('VmHWM'):8.0f} MiB")
        if (nodes, cards) == USUAL[0][:2]:
            note("memory 64000", extender.mib("VmRSS") * 2**20 / 10**6)
            return
        note(f"start{suffix}", extender.ready_seconds)
        note(f"memory{suffix}", extender.mib("VmRSS") * 2**20 / 10**6)
        if not others:
            note("event", event_cost(extender, "CPU of a pod event", "", node_name(0)))
        else:
            what = "CPU of an event of another pod"
            note("event of others", event_cost(extender, what, "&others", node_name(nodes - 1)))
        print(f"{'memory after them':<30} {extender.mib('VmRSS'):8.0f} MiB")


def event_cost(extender: program.Program, what: str, which: str, full: str) -> float:
    """Return the CPU of one event in ms; the last event fills the node ``full`` up."""
    asks = pod("asks", 1, version=1)
    assert extender.fits(asks, full)
    before = extender.cpu_seconds()
    program.order(f"events?count={EVENTS}{which}")
    end = time.monotonic() + EVENT_SECONDS
    while extender.fits(asks, full):
        assert time.monotonic() < end, "the events did not arrive"
        time.sleep(0.2)
    used = (extender.cpu_seconds() - before) / EVENTS * 1000
    print(f"{what:<30} {used:8.3f} ms     to reach: <= 1")
    return used


if __name__ == "__main__":
    main()
