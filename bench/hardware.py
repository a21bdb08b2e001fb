"""Prints what this machine's real driver reports, through the module that the plugin uses.

    python -m bench.hardware [--seconds 30]

It starts nothing on the GPUs and changes nothing. docs/dev/hardware.md describes what to compare.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from deviceplugin.cards.rules import ACTIONS
from deviceplugin.driver.interface import PhysicalCard, Seen
from deviceplugin.driver.nvml import Nvml, NvmlProcesses
from deviceplugin.errors import DriverError
from deviceplugin.usage.cgroup_paths import owner_of

LOOKS = 20
SAMPLED_SECONDS = 3
MIB = 2**20

T = TypeVar("T")


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.hardware", description=__doc__)
    parser.add_argument("--seconds", type=float, default=30, help="how long to wait for events")
    seconds = parser.parse_args().seconds
    driver = Nvml()
    try:
        show_cards(driver)
        show_processes()
        show_events(driver, seconds)
    except DriverError as err:
        print(f"{err}\nThis needs a machine with NVIDIA's driver: nothing was looked at")
        return 1
    return 0


def show_cards(driver: Nvml) -> None:
    def look() -> list[Seen]:
        return [driver.card(position) for position in range(driver.count())]

    first, cards = timed(look)
    for card in cards:
        print(card)
        if isinstance(card, PhysicalCard) and card.recovery_action:
            print(f"  the driver advises to {ACTIONS.get(card.recovery_action, 'something new')}")
    later = sorted(timed(look)[0] for _ in range(LOOKS))
    print(
        f"a look at {len(cards)} cards: the first {first * 1000:.1f} ms, later ones "
        f"{later[LOOKS // 2] * 1000:.1f} ms, the slowest {later[-1] * 1000:.1f} ms"
    )


def show_processes() -> None:
    source = NvmlProcesses()
    cards = range(source.count())
    for position in cards:
        source.samples(position)  # from now on
    time.sleep(SAMPLED_SECONDS)
    took, processes = timed(lambda: [source.processes(position) for position in cards])
    sampling, samples = timed(lambda: [source.samples(position) for position in cards])
    for position, found in enumerate(processes):
        uuid = source.uuid(position)
        if found is None:
            print(f"{uuid}: the driver does not tell its processes")
        for each in found or ():
            used = "not told" if each.used_bytes is None else f"{each.used_bytes / MIB:.0f} MiB"
            sm = [one.sm_percent for one in samples[position] if one.pid == each.pid]
            print(f"{uuid}: pid {each.pid}, {used}, SM % {sm or 'not told'}, {pod_of(each.pid)}")
    print(
        f"asking for the processes: {took * 1000:.1f} ms, for what they did in "
        f"{SAMPLED_SECONDS} s: {sampling * 1000:.1f} ms"
    )


def pod_of(pid: int) -> str:
    try:
        owner = owner_of(Path(f"/proc/{pid}/cgroup").read_text())
    except OSError as err:
        return f"not seen here ({err.strerror}): are these the host's process IDs?"
    return f"pod {owner.pod_uid}" if owner else "of no pod"


def show_events(driver: Nvml, seconds: float) -> None:
    until = time.monotonic() + seconds
    driver.next_event(0.1)
    print(f"events are heard of {len(driver.heard)} cards; waiting {seconds:g} s for some")
    while time.monotonic() < until:
        if (event := driver.next_event(1.0)) is not None:
            print(event)


def timed(call: Callable[[], T]) -> tuple[float, T]:
    began = time.perf_counter()
    found = call()
    return time.perf_counter() - began, found


if __name__ == "__main__":
    sys.exit(main())
