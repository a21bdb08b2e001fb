"""Measures what 5,000 nodes and 50,000 pods cost the extender: memory, start, and each event.

    python -m bench.cache [NODES PODS]

The extender runs against a paper API server whose objects are as large as real ones. The start is
the time from exec until /readyz, including 3 s in which a predecessor may still write. An event is
a change of a bound pod; its cost is the CPU time for many of them, divided by their number.
"""

import sys
import time
from typing import Final

from bench import program
from bench.figures import note
from bench.paper_api import pod

CARDS: Final = 2
EVENTS: Final = 5000
EVENT_SECONDS: Final = 60.0


def main() -> None:
    nodes, pods = map(int, sys.argv[1:]) if sys.argv[1:] else (5000, 50000)
    with program.running(nodes, CARDS, pods // nodes // CARDS) as extender:
        print(f"{nodes} nodes of {CARDS} cards, {pods} pods that hold units")
        print(f"{'start to ready':<30} {extender.ready_seconds:8.1f} s      to reach: <= 15")
        print(f"{'CPU of it':<30} {extender.cpu_seconds():8.1f} s")
        time.sleep(1)
        print(f"{'memory':<30} {extender.mib('VmRSS'):8.0f} MiB    to reach: <= 500 MB")
        print(f"{'memory, highest':<30} {extender.mib('VmHWM'):8.0f} MiB")
        note("start", extender.ready_seconds)
        note("memory", extender.mib("VmRSS") * 2**20 / 10**6)
        asks = pod("asks", 1, version=1)
        assert extender.fits(asks, "paper-0")
        before = extender.cpu_seconds()
        program.order(f"events?count={EVENTS}")
        end = time.monotonic() + EVENT_SECONDS
        while extender.fits(asks, "paper-0"):  # the last event fills it up
            assert time.monotonic() < end, "the events did not arrive"
            time.sleep(0.2)
        used = (extender.cpu_seconds() - before) / EVENTS * 1000
        print(f"{'CPU of a pod event':<30} {used:8.3f} ms     to reach: <= 1")
        note("event", used)
        print(f"{'memory after them':<30} {extender.mib('VmRSS'):8.0f} MiB")


if __name__ == "__main__":
    main()
