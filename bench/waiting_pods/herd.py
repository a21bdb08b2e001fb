"""How long a pod without GPU memory takes to be bound while other pods wait."""

import asyncio
import statistics
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from bench.apiserver import PODS
from bench.waiting_pods.recording import Decide
from bench.waiting_pods.setting import (
    GATED,
    Setting,
    Updates,
    plain_pod,
    waiting_pods,
)
from bench.world import LABEL

COUNTS: Final = (100, 600, 2000)
EVERY_SECONDS: Final = 0.5
SECONDS: Final = 20.0
MOST_SECONDS: Final = 60.0
SETTLE_SECONDS: Final = 5.0
FRESH: Final = "fresh"
WAITING: Final = "waits"


@dataclass(frozen=True)
class Latency:
    """``seconds`` from creation to binding of each pod; those not bound count MOST_SECONDS."""

    seconds: Sequence[float]
    attempts: float

    @property
    def median(self) -> float:
        return statistics.median(self.seconds) * 1000

    @property
    def most(self) -> float:
        return sorted(self.seconds)[int(0.95 * len(self.seconds))] * 1000


async def herd(setting: Setting, rounds: int, decide: Decide) -> None:
    """Print the latency for each number of waiting pods, measured in turn.

    The last round also measures pods that are rejected, for whom a few seconds more do not matter.
    """
    setting.extender.decide = decide
    setting.extender.keep_nodes = False
    found: dict[str, list[Latency]] = {}

    async def measure(title: str) -> None:
        await asyncio.sleep(SETTLE_SECONDS)
        one = await _latency(setting)
        found.setdefault(title, []).append(one)
        print(
            f"  {title}: median {one.median:.1f} ms, 95 % {one.most:.1f} ms,"
            f" {one.attempts:.0f} attempts/s",
            flush=True,
        )

    async with Updates(setting):
        for number in range(rounds):
            await measure("none")
            for gated in (True, False) if number + 1 == rounds else (True,):
                waiting: list[dict[str, Any]] = []
                for count in COUNTS:
                    group = f"{WAITING}-{number}-{gated}-{count}".lower()
                    made = waiting_pods(group, count - len(waiting), **(GATED if gated else {}))
                    for each in made:
                        each["metadata"]["labels"][LABEL] = WAITING
                    setting.extender.calls.clear()
                    await setting.create(made)
                    if not gated:
                        names = {each["metadata"]["name"] for each in made}
                        await _until_rejected(setting, names)
                    waiting += made
                    await measure(f"{count} {'gated' if gated else 'rejected'}")
                await setting.delete_each(waiting)
            await measure("none")
    _print(setting, found)


async def _until_rejected(setting: Setting, names: set[str]) -> None:
    """Return once filter was called for each of these pods."""
    await setting.until(
        "each pod to be rejected", lambda: names <= {each.pod for each in setting.extender.calls}
    )


async def _latency(setting: Setting) -> Latency:
    """Create a pod every half second, and measure when a watch shows it bound."""
    setting.extender.calls.clear()
    began: dict[str, float] = {}
    took: dict[str, float] = {}
    since = await setting.api.version(PODS)

    async def watch() -> None:
        async for name, _ in setting.api.bound(f"{LABEL}={FRESH}", since):
            if name in began:
                took[name] = time.perf_counter() - began[name]

    async def create(name: str) -> None:
        began[name] = time.perf_counter()
        await setting.create([plain_pod(name, FRESH)])

    before = await setting.attempts()
    watching = asyncio.create_task(watch())
    await asyncio.sleep(0.5)
    start = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(int(SECONDS / EVERY_SECONDS)):
            group.create_task(create(f"{FRESH}-{number}"))
            due = start + (number + 1) * EVERY_SECONDS
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
    attempts = (await setting.attempts() - before) / (time.perf_counter() - start)
    with suppress(TimeoutError):
        await setting.until(
            "the new pods to be bound", lambda: len(took) == len(began), MOST_SECONDS
        )
    watching.cancel()
    with suppress(asyncio.CancelledError):
        await watching
    await setting.delete(FRESH)
    return Latency([took.get(name, MOST_SECONDS) for name in began], attempts)


def _print(setting: Setting, found: dict[str, list[Latency]]) -> None:
    floor = statistics.median(each.median for each in found["none"])
    worst = statistics.median(each.most for each in found["none"])
    print(f"\n{setting.shape.nodes} nodes: ms from creation to binding, ratios to none waiting")
    print("| waiting | median | ratio | 95 % | ratio | attempts/s | medians by round |")
    print("|---|---|---|---|---|---|---|")
    for title, rounds in found.items():
        median = statistics.median(each.median for each in rounds)
        most = statistics.median(each.most for each in rounds)
        rate = statistics.median(each.attempts for each in rounds)
        cells = (
            title,
            f"{median:.0f}",
            f"{median / floor:.2f}",
            f"{most:.0f}",
            f"{most / worst:.2f}",
            f"{rate:.0f}",
            " ".join(f"{each.median:.0f}" for each in rounds),
        )
        print(f"| {' | '.join(cells)} |", flush=True)
