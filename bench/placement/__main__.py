"""Measures how much of the GPUs is allocated by gpushare's policies, and by the rules of others.

    python -m bench.placement [--trace FOLDER [--variants default,gpushare40]] [--seeds 10]

FOLDER has CSV files of Alibaba's trace openb (cluster-trace-gpu-v2023); without it, a generated
trace of 190 nodes is used. All systems get the same pods. Inflation: pods arrive until 1.3 times
the capacity is requested, and none leaves. Coming and going: pods arrive at random and leave at a
constant load; a pod that finds no room does not wait. Change: the same, but in the middle of the
measured time the mix of pods changes at once, or pods without GPU begin or stop to come, and the
pods that arrive from then on are measured.
Ten nodes: both on ten random nodes of the trace. Equal: both with pods that all request the same
part of a GPU. Defragmentation: the cards that become free when pods move, on a cluster of which all
has been requested, or of which 30 % of the pods ended.
"""

import argparse
import gc
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from itertools import product
from pathlib import Path
from statistics import mean, median, quantiles, stdev
from typing import Final, NamedTuple

from bench.placement.books import Books, Setup, System
from bench.placement.churn import Refused, churn
from bench.placement.defragmenting import Freed, defragment
from bench.placement.inflation import Filled, fill
from bench.placement.peers import (
    Elsewhere,
    Fgd,
    at_random,
    best_fit,
    gpu_memory_only,
    kube_scheduler,
)
from bench.placement.product import Gpushare
from bench.placement.trace import Trace, generated, read, variants
from bench.placement.variations import (
    EQUAL,
    LARGE,
    ONLY_GPU,
    SMALL,
    TEN_NODES,
    VARIATIONS,
    WHOLE_TRACE,
    of_several_gpus,
)
from extender.settings.configuration import Policy

FIRST_SEED: Final = 42
GENERATED: Final = "generated"
LOADS: Final = (0.97, 1.03)
BY_KUBE_SCHEDULER: Final = "by kube-scheduler"
KEPT_OFF: Final = "kept off"
ENDED: Final = (0.0, 0.3)  # of the pods, before cards are freed
_FREED: Final = ("free", "cards", "moves")

Make = Callable[[Trace, Books, int], System]

SYSTEMS: Final[dict[str, Make]] = {
    "gpushare binpack": lambda trace, books, _: Gpushare(trace, books, Policy()),
    "gpushare prices": lambda trace, books, _: Gpushare(trace, books, Policy(node="prices")),
    "gpushare spread": lambda trace, books, _: Gpushare(trace, books, Policy(node="spread")),
    "GPU memory only": lambda _, books, __: gpu_memory_only(books),
    "FGD": lambda trace, books, _: Fgd(trace, books).system(),
    "best fit": lambda _, books, __: best_fit(books),
    "kube-scheduler": lambda _, books, seed: kube_scheduler(books, seed),
    "random": lambda _, books, seed: at_random(books, seed),
}
# Who places pods without GPU.
OTHERS: Final[dict[str, Make]] = {
    KEPT_OFF: lambda _, __, ___: Elsewhere(),
    BY_KUBE_SCHEDULER: lambda _, books, seed: kube_scheduler(books, seed + 1),
}


class Table(NamedTuple):
    """What is measured; a load of 0 stands for inflation.

    ``variation`` of the trace is used, and the pods of ``after`` come after a change of the mix.
    FGD is told the mix before it.
    """

    load: float
    variation: str = WHOLE_TRACE
    after: str = ""
    others: str = KEPT_OFF

    def title(self) -> str:
        what = f"{100 * self.load:.0f} % load" if self.load else "inflation"
        change = f", then {self.after}" if self.after else ""
        return f"{what}, {self.variation}{change}, pods without GPU {self.others}"


TABLES: Final = {
    "inflation": [Table(0, others=others) for others in OTHERS],
    "churn": [Table(load, others=others) for load in LOADS for others in OTHERS],
    "change": [Table(LOADS[0], SMALL, LARGE), Table(LOADS[0], LARGE, SMALL)],
    "others-change": [
        Table(LOADS[0], ONLY_GPU, WHOLE_TRACE, BY_KUBE_SCHEDULER),
        Table(LOADS[0], WHOLE_TRACE, ONLY_GPU, BY_KUBE_SCHEDULER),
    ],
    "ten-nodes": [Table(load, TEN_NODES) for load in (0, LOADS[0])],
    "equal": [Table(load, EQUAL) for load in (0, LOADS[0])],
}


class Job(NamedTuple):
    """One run for a table."""

    folder: str
    variant: str
    system: str
    table: Table
    seed: int


@cache
def _trace(folder: str, variant: str) -> Trace:
    return read(Path(folder), variant) if folder else generated()


def run(job: Job) -> Filled | Refused:
    original, table, seed = _trace(job.folder, job.variant), job.table, job.seed
    trace = VARIATIONS[table.variation](original, seed)
    books = Books(trace)
    gpus = SYSTEMS[job.system](trace, books, seed)
    setup = Setup(trace, books, gpus, OTHERS[table.others](trace, books, seed))
    if not table.load:
        return fill(setup, seed)
    after = VARIATIONS[table.after](original, seed).pods if table.after else ()
    return churn(setup, seed, table.load, after)


def _cell(values: Sequence[float]) -> str:
    deviation = f" ± {stdev(values):.2f}" if len(values) > 1 else ""
    return f"{mean(values):.2f}{deviation}"


def _row(found: Sequence[Filled | Refused]) -> list[str]:
    filled = [each for each in found if isinstance(each, Filled)]
    refused = [each for each in found if isinstance(each, Refused)]
    if refused:
        return [_cell([each.total for each in refused]), _cell([each.large for each in refused])]
    idle = [mean(each.idle[cause] for each in filled) for cause in filled[0].idle]
    return [
        _cell([each.at_100 for each in filled]),
        _cell([each.at_130 for each in filled]),
        f"{mean(each.first_refused for each in filled):.0f}",
        *(f"{share:.2f}" for share in idle),
    ]


_FILLED: Final = (
    "at 100 %", "at 130 %", "first refused", "idle: CPU", "memory", "model", "remnants", "usable"
)  # fmt: skip
_TOOK: Final = ("median", "mean", "p99", "most")
_REFUSED: Final = ("GPU time refused, %", "of it by pods of 8 GPUs")


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.placement", description=__doc__)
    parser.add_argument("--trace", default="", metavar="FOLDER")
    parser.add_argument("--variants", default="", help="lists of pods in FOLDER, such as default")
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--only", choices=(*TABLES, "defragment", "decisions"))
    options = parser.parse_args()
    known = variants(Path(options.trace)) if options.trace else [GENERATED]
    names = options.variants.split(",") if options.variants else known
    systems = options.systems.split(",")
    for given, there in ((names, known), (systems, list(SYSTEMS))):
        if unknown := sorted(set(given) - set(there)):
            parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(there) or 'none'}")
    seeds = range(FIRST_SEED, FIRST_SEED + options.seeds)
    if options.only in {None, "decisions"}:
        for variant in names:
            _time_decisions(_trace(options.trace, variant))
    with ProcessPoolExecutor() as pool:
        for variant in names:
            for table in _tables(options.only, _trace(options.trace, variant)):
                print(f"\n{variant}, {table.title()}, {len(seeds)} seeds")
                columns = ("system", *(_REFUSED if table.load else _FILLED))
                print("| " + " | ".join(columns) + " |\n|" + "---|" * len(columns))
                for system in systems:
                    jobs = [Job(options.trace, variant, system, table, seed) for seed in seeds]
                    cells = _row(list(pool.map(run, jobs)))
                    print("| " + " | ".join([system, *cells]) + " |", flush=True)
            if options.only in {None, "defragment"}:
                _defragment(pool, options.trace, variant, seeds)
    return 0


def _time_decisions(trace: Trace) -> None:
    """Print how long filter's decisions take while the cluster fills up, one after the other."""
    medians: list[float] = []
    for others, policy in product(OTHERS, (Policy(), Policy(node="prices"))):
        books = Books(trace)
        gpushare = Gpushare(trace, books, policy)
        gc.collect()
        gc.freeze()  # as the program does once it has listed
        fill(Setup(trace, books, gpushare, OTHERS[others](trace, books, FIRST_SEED)), FIRST_SEED)
        took = sorted(each * 1e6 for each in gpushare.took)
        shown = [median(took), mean(took), quantiles(took, n=100)[98], took[-1]]
        medians.append(shown[0])
        texts = (f"{what} {value:.0f} us" for what, value in zip(_TOOK, shown, strict=True))
        print(
            f"{trace.name}, decision of filter, {len(trace.nodes)} nodes, {policy.node}, pods "
            f"without GPU {others}: {', '.join(texts)}; median {shown[0] / medians[0]:.2f} x the "
            f"first; longest step of learning {max(gpushare.steps) * 1e3:.1f} ms"
        )


def _defragment(pool: ProcessPoolExecutor, folder: str, variant: str, seeds: Sequence[int]) -> None:
    print(f"\n{variant}, defragmentation, {len(seeds)} seeds")
    print("| pods that ended before | free GPUs | more after moves | moves |\n|---|---|---|---|")
    for ended in ENDED:
        found = list(pool.map(free_all, [(folder, variant, seed, ended) for seed in seeds]))
        cells = [_cell([getattr(each, name) for each in found]) for name in _FREED]
        print(f"| {100 * ended:.0f} % | " + " | ".join(cells) + " |", flush=True)


def free_all(job: tuple[str, str, int, float]) -> Freed:
    folder, variant, seed, ended = job
    return defragment(_trace(folder, variant), seed, ended)


def _tables(only: str | None, trace: Trace) -> list[Table]:
    """Return what is measured; a change needs a trace with pods of several GPUs."""
    chosen = [table for name in TABLES if only in {None, name} for table in TABLES[name]]
    return [table for table in chosen if not table.after or of_several_gpus(trace)]


if __name__ == "__main__":
    sys.exit(main())
