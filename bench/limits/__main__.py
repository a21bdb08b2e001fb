"""Tries on this machine's GPU what keeps processes to their share, and prints a table.

    python -m bench.limits [--python=PATH]

PATH is an interpreter with PyTorch or JAX. Needs no network, and takes at most five minutes. It
allocates half of the first GPU and changes no setting. For the results see docs/dev/hardware.md.
"""

import argparse
import asyncio
import os
import sys
import threading
from collections import defaultdict
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import fmean
from typing import Final

import pynvml  # noqa: TID251 - asked for the version, which the plugin has no use for

from bench.limits import newer, rules, smi
from bench.limits.children import Child, Place, child
from bench.limits.rules import JAX, TORCH, Framework, Trial, Use
from bench.limits.table import Row, Verdict, judged, not_here, table
from deviceplugin.driver.interface import PhysicalCard, UnreadableCard
from deviceplugin.driver.nvml import Nvml, NvmlProcesses
from deviceplugin.errors import DriverError
from deviceplugin.isolation.node_isolation import NodeIsolation
from deviceplugin.isolation.variables import Enforcement
from deviceplugin.settings import CGROUP
from gpushare.cards.model import Card
from gpushare.contract import ENV_ALLOCATABLE

LONGEST_SECONDS: Final = 285.0
UNIT_MIB: Final = 1024
PARTS: Final = 4  # a share is this part of the GPU
BUSY_MIB: Final = 1024
HALF_BUSY_MIB: Final = 512


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.limits", description=__doc__)
    parser.add_argument("--python", type=Path, default=sys.executable, help="has PyTorch or JAX")
    python = parser.parse_args().python.absolute()
    if not (python.is_file() and os.access(python, os.X_OK)):
        parser.error(f"--python={python} is no program")
    rows: list[Row] = []
    # A call of a broken driver may never return.
    watchdog = threading.Timer(LONGEST_SECONDS, give_up, [rows])
    watchdog.daemon = True
    watchdog.start()
    try:
        asyncio.run(look(python, rows))
    except DriverError as err:
        print(f"{err}\nThis needs a machine with NVIDIA's driver: nothing was tried")
        return 1
    watchdog.cancel()
    print(f"\n{newer.text()}")
    return conclude(rows)


def conclude(rows: list[Row]) -> int:
    print(f"\n{table(rows)}", flush=True)
    return int(any(row.verdict is Verdict.WRONG for row in rows))


def give_up(rows: list[Row]) -> None:
    conclude([*rows, judged("end", is_right=False, seen=f"not reached in {LONGEST_SECONDS:g} s")])
    os._exit(1)


async def look(python: Path, rows: list[Row]) -> None:
    """Add a row for each check."""
    driver, source = Nvml(CGROUP), NvmlProcesses()
    seen = [driver.card(position) for position in range(driver.count())]
    source.count()
    version = str(pynvml.nvmlSystemGetDriverVersion())
    print(f"driver {version}, {len(seen)} GPUs; frameworks of {python}")
    isolation = NodeIsolation("auto", by_frameworks=True, before=None)
    isolation.why_no_limit = ""  # this asks about the driver, not about NVIDIA's hook
    isolation.seen(seen)
    stated: list[Card] = []
    for each in seen:
        if isinstance(each, UnreadableCard):
            rows.append(judged(f"GPU {each.position}", is_right=False, seen=each.why))
        else:
            stated.append(isolation.stated(offered(len(stated), each)))
    for card in stated:
        print(
            f"GPU {card.index}: {card.uuid}, {card.model}, {card.memory_mib} MiB, {card.units} "
            f"units; enforces {card.enforces}; why not more: {card.why_not_more or '-'}"
        )
        rows.append(rules.statement(card, version))
    usable = [card for card in stated if card.units >= PARTS]
    if not usable:
        rows.append(not_here("shares", "no GPU that can be shared"))
        return
    card = usable[0]
    position = next(
        place
        for place, each in enumerate(seen)
        if isinstance(each, PhysicalCard) and each.uuid == card.uuid
    )
    cgroup = own_cgroup()
    why = "" if isolation.can_limit([card]) else card.why_not_more
    rows.append(rules.reading(str(cgroup), source.limit(position, cgroup), why))
    others = source.processes(position)
    if others:
        print(f"{len(others)} other processes are on GPU {card.index}: results may differ")
    trials = Trials(source, position, Place(python, card.uuid), rows)
    for framework in (TORCH, JAX):
        await trials.of_framework(framework, trial_of(card))
    await trials.of_use()


def offered(index: int, card: PhysicalCard) -> Card:
    """Return the GPU as the plugin offers it; deviceplugin.cards.survey needs more packages."""
    usable_mib = 0 if card.is_mig else card.memory_mib - (card.reserved_mib or 0)
    units = usable_mib // UNIT_MIB
    return Card(index, card.uuid, units, model=card.model, memory_mib=card.memory_mib)


def trial_of(card: Card) -> Trial:
    share_mib = card.units // PARTS * UNIT_MIB
    variables = Enforcement(by_frameworks=True).variables([card], share_mib, (), {})
    return Trial(share_mib, int(variables[ENV_ALLOCATABLE]), variables)


def own_cgroup() -> Path:
    """Return the directory of this process's cgroup (v2), as it is mounted here."""
    lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    path = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), "")
    return CGROUP / path


class Trials:
    """Processes on the GPU at ``position``; ``rows`` gets what is judged of them."""

    def __init__(self, source: NvmlProcesses, position: int, place: Place, rows: list[Row]) -> None:
        self._source = source
        self._position = position
        self._place = place
        self._rows = rows
        self._present: set[Framework] = set()

    async def of_framework(self, framework: Framework, trial: Trial) -> None:
        print(f"{framework.title}, with {dict(trial.variables)}", flush=True)
        words = (framework.name, "probe", trial.below_mib, trial.share_mib)
        async with child(self._place, words, trial.variables) as process:
            report = await process.report()
        print(f"  {report}", flush=True)
        self._rows += rules.alone(framework, trial, report)
        if not report.absent:
            self._present.add(framework)
        words = (framework.name, "hold", trial.below_mib, 0)
        async with AsyncExitStack() as stack:
            both = [
                await stack.enter_async_context(child(self._place, words, trial.variables))
                for _ in range(2)
            ]
            reports = await asyncio.gather(*(each.report() for each in both))
            used = self._memory_mib()
        print(*(f"  {each}" for each in reports), sep="\n", flush=True)
        used_mib = [used.get(each.pid) for each in both]
        self._rows += rules.together(framework, trial, reports, used_mib)

    async def of_use(self) -> None:
        """Compare what the plugin measures with what nvidia-smi says."""
        name, title, why = "torch", "PyTorch", ""
        if TORCH not in self._present:
            name, title, why = "cuda", "libcuda", "without PyTorch nothing computes"
        busy = (name, "hold", BUSY_MIB, 0 if why else 100)
        half = (name, "hold", HALF_BUSY_MIB, 0 if why else 50)
        async with child(self._place, busy, {}) as one, child(self._place, half, {}) as two:
            reports = await asyncio.gather(one.report(), two.report())
            absent = next((each.absent for each in reports if each.absent), "")
            error = next((each.error for each in reports if each.error), "")
            if absent or error:
                rows = [not_here(check, absent) for check in (rules.MEMORY_OF_USE, rules.SM_OF_USE)]
                if error:
                    rows = [judged(row.check, is_right=False, seen=error) for row in rows]
                self._rows += rows
                return
            titles = (f"{title} busy, {BUSY_MIB} MiB", f"{title} half busy, {HALF_BUSY_MIB} MiB")
            try:
                uses = await self._uses(dict(zip(titles, (one, two), strict=True)))
            except smi.SmiFailed as err:
                self._rows.append(not_here(rules.MEMORY_OF_USE, str(err)))
                self._rows.append(not_here(rules.SM_OF_USE, str(err)))
                return
        for use in uses:
            print(use, flush=True)
        self._rows.append(rules.memory(uses))
        self._rows.append(not_here(rules.SM_OF_USE, why) if why else rules.sm(uses))

    async def _uses(self, processes: dict[str, Child]) -> list[Use]:
        used, of_smi = self._memory_mib(), await smi.memory_mib()
        self._source.samples(self._position)  # from now on
        samples: dict[int, list[int]] = defaultdict(list)
        watched = asyncio.create_task(smi.sm_percent())
        while not watched.done():
            await asyncio.wait({watched}, timeout=1)
            for sample in self._source.samples(self._position):
                samples[sample.pid].append(sample.sm_percent)
        sm_of_smi = await watched
        return [
            Use(
                title,
                process.pid,
                used.get(process.pid),
                of_smi.get(process.pid),
                fmean(samples[process.pid]) if samples[process.pid] else None,
                sm_of_smi.get(process.pid),
            )
            for title, process in processes.items()
        ]

    def _memory_mib(self) -> dict[int, int]:
        """Return MiB by process ID, of those whose memory the driver tells the plugin."""
        found = self._source.processes(self._position) or ()
        return {
            each.pid: -(-each.used_bytes // rules.MIB)
            for each in found
            if each.used_bytes is not None
        }


if __name__ == "__main__":
    sys.exit(main())
