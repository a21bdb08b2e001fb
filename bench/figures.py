"""The figures of all benchmarks: what is measured, the floor, and the target.

Each benchmark notes its figures; ``python -m bench`` runs them and prints the table.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

VARIABLE: Final = "GPUSHARE_BENCH_FIGURES"  # the file of a run that makes one table of all


@dataclass(frozen=True)
class Figure:
    """A figure that ``command`` measures. With the unit "x" the floor is 1."""

    key: str
    what: str
    floor: str
    command: str
    most: float | None = None
    least: float | None = None
    unit: str = "x"

    @property
    def to_reach(self) -> str:
        if self.most is not None:
            return f"<= {self.most:g} {self.unit}".rstrip()
        return f">= {self.least:g} {self.unit}".rstrip() if self.least is not None else "-"

    def judged(self, value: float) -> str:
        """Return whether the value, as shown, meets the target."""
        if self.most is None and self.least is None:
            return ""
        shown = float(_rounded(value))
        is_met = shown <= self.most if self.most is not None else shown >= (self.least or 0)
        return "met" if is_met else "**missed**"


class Note(msgspec.Struct):
    """A measured value; ``detail`` has the numbers behind a ratio, or a count."""

    key: str
    value: float
    detail: str = ""


_SAME: Final = "the same call, undecided"
_LEADER: Final = "called on the leader"
_READ: Final = "every node read once"
_CALL: Final = "an empty call"
_NULL = "null extender, 8 names"
_SAMPLE: Final = "kube-scheduler's sample"


def _rows(row: str) -> str:
    return f"bench.throughput --rows {row}"


def _settings(row: str) -> str:
    return f"bench.throughput --settings --rows {row}"


# The rows of bench.throughput.
ROWS: Final = {
    "exact": "160 pods that exactly fill 10 nodes",
    "small": "100 nodes x 8 GPUs x 2 pods",
    "medium": "1,000 nodes x 2 GPUs x 8 pods",
    "large": "5,000 nodes x 1 GPU x 2 pods",
}


def _throughput(row: str) -> tuple[Figure, ...]:
    command = _rows(row)
    return (
        Figure(row, f"pods/s, {ROWS[row]}", _NULL, command, least=0.95),
        Figure(f"{row} none", "the same", "no extender", command),
        Figure(f"{row} alone", "a pod alone, from its creation until it is bound", _NULL, command,
               1.1),
        Figure(f"{row} cpu", "CPU of the extender for a pod", _NULL, command),
        Figure(f"{row} cpu ms", "the same", "-", command, 1.5, unit="ms"),
    )  # fmt: skip


FIGURES: Final = (
    Figure("filter", "filter, 1,000 nodes x 8 GPUs x 16 pods", _SAME, "bench.filter", 1.3),
    Figure("filter 37", "the same, 37 sizes in turn, a pod bound between calls", _SAME,
           "bench.filter", 2.0),
    Figure("filter all", "the same, all that fit offered", _SAME, "bench.filter"),
    Figure("filter 5000", "filter, 5,000 nodes", "the same at 1,000", "bench.filter", 5.5),
    Figure("decision", "filter, the decision alone, 1,000 nodes", "-", "bench.filter", 1.5,
           unit="ms"),
    Figure("prioritize", "prioritize of 1,000 nodes", _SAME, "bench.filter", 2.0),
    Figure("prioritize 5000", "prioritize of 5,000 nodes", _SAME, "bench.filter"),
    Figure("filter forwarded", "filter, 1,000 nodes, forwarded by a replica", _LEADER,
           "bench.filter"),
    Figure("filter forwarded 5000", "filter, 5,000 nodes, forwarded by a replica", _LEADER,
           "bench.filter"),
    Figure("bind", "CPU of a bind, 1,000 nodes", "-", "bench.binds", unit="ms"),
    Figure("filter and binds", "filter, 1,000 nodes, with a bind for each",
           "filters alone", "bench.binds"),
    Figure("member", "CPU of the ledger at a member seen bound, 1,024 on as many nodes", "-",
           "bench.ledger", 0.1, unit="ms"),
    Figure("member to floor", "the same", "a pod without a hold", "bench.ledger", 5.0),
    Figure("event", "CPU of a pod event, 5,000 nodes, 50,000 pods", "-", "bench.cache", 1,
           unit="ms"),
    Figure("memory", "memory with them", "-", "bench.cache", 500, unit="MB"),
    Figure("start", "cold start to ready with them", "-", "bench.cache", 15, unit="s"),
    Figure("memory 64000", "memory with 1,000 nodes x 8 GPUs x 8 pods", "-", "bench.cache", 150,
           unit="MB"),
    Figure("event of others", "CPU of an event of one of 50,000 more pods without GPU memory",
           "-", "bench.cache", 1, unit="ms"),
    Figure("memory with others", "memory with all of them", "-", "bench.cache", 500, unit="MB"),
    Figure("start with others", "cold start to ready with all of them", "-", "bench.cache",
           unit="s"),
    Figure("pause metrics", "longest pause while metrics of 5,000 nodes are rendered",
           "an idle loop", "bench.pauses", unit="ms"),
    Figure("pause audit", "longest pause in an audit of their ledger, 80,000 pods",
           "an idle loop", "bench.pauses", unit="ms"),
    Figure("pause list", "longest pause while all these pods are listed again",
           "an idle loop", "bench.pauses", unit="ms"),
    Figure("page 1", "filter, 1,000 nodes, with 1 viewer of the live page", "no viewers",
           "bench.page"),
    Figure("page 20", "the same with 20", "no viewers", "bench.page"),
    Figure("plan cold 1000", "plan of 512 pods, 1,000 nodes x 8 GPUs x 64 pods, cold", _READ,
           "bench.planning"),
    Figure("plan warm 1000", "the same, planned before, 20 nodes changed", _READ,
           "bench.planning"),
    Figure("plan step 1000", "longest step of these", "-", "bench.planning", 5, unit="ms"),
    Figure("plan cold 5000", "plan of 512 pods, 5,000 nodes, cold", _READ, "bench.planning"),
    Figure("plan warm 5000", "the same, planned before, 20 nodes changed", _READ,
           "bench.planning"),
    Figure("victims", "victims for a gang of 512, 1,000 nodes x 8 GPUs, 50,000 pods",
           "cold plan on empty nodes", "bench.victims"),
    Figure("victims ms", "the same in ms of CPU", "-", "bench.victims", 250, unit="ms"),
    Figure("victims step", "longest step of these", "-", "bench.victims", 5, unit="ms"),
    Figure("plan step 5000", "longest step of these", "-", "bench.planning", 5, unit="ms"),
    Figure("gated gang", "512 pods of a gated gang from creation to last bind, 1,000 nodes",
           "512 single pods", "bench.gangs"),
    Figure("ungated gang", "the same without gates", "512 single pods", "bench.gangs"),
    Figure("waiting gangs", "p99 of filter beside 200 waiting gangs and 2,000 gated pods",
           "none waiting", "bench.waiting_gangs", 1.1),
    Figure("waiting gangs median", "median of these", "none waiting", "bench.waiting_gangs"),
    Figure("pause gangs", "longest pause by these, a gang of 1,024 and 10,000 gated pods", "-",
           "bench.waiting_gangs", 5, unit="ms"),
    Figure("admissions", "pods/s bound, 2,000 gated pods that all may be placed, 1,000 nodes",
           "not gated", "bench.admissions", least=0.9),
    Figure("admissions released", "the same: released", "-", "bench.admissions", least=150,
           unit="pods/s"),
    Figure("admissions quotas", "the same, 4 namespaces with quotas", "not gated",
           "bench.admissions", least=0.9),
    Figure("admissions quotas released", "the same: released", "-", "bench.admissions",
           least=150, unit="pods/s"),
    Figure("admissions latency", "a pod without GPU memory, from creation to binding, beside them",
           "none waiting", "bench.admissions", 1.1),
    Figure("prefer", "GetPreferredAllocation, late binding, 32,552 units", _CALL,
           "bench.deviceplugin"),
    Figure("allocate late", "Allocate, the same", _CALL, "bench.deviceplugin"),
    Figure("allocate early", "Allocate, early binding, the same", _CALL, "bench.deviceplugin"),
    Figure("start late", "PreStartContainer, late binding, the same", _CALL, "bench.deviceplugin",
           3.0),
    Figure("start early", "PreStartContainer, early binding, the same", _CALL,
           "bench.deviceplugin", 3.0),
    Figure("list", "list of 209,715 units, sent", "the same bytes", "bench.deviceplugin"),
    Figure("list built", "the same list, built the first time", "-", "bench.deviceplugin",
           unit="ms"),
    Figure("plugin memory", "memory of the plugin with it", "without GPUs",
           "bench.deviceplugin"),
    Figure("attack-filter", "filter, 99th percentile, 16 callers sending gzip", "without them",
           "bench.attacks", 2.0),
    Figure("attack-filter-health", "slowest /healthz meanwhile", "-", "bench.attacks", 1000,
           unit="ms"),
    Figure("attack-plugin", "PreStartContainer, 16 callers sending gzip", "without them",
           "bench.attacks", 2.0),
    Figure("attack-plugin-health", "slowest /healthz meanwhile", "-", "bench.attacks", 1000,
           unit="ms"),
    *(each for row in ROWS for each in _throughput(row)),
    Figure("exact failed", "failed attempts with the first of these", "-", _rows("exact"), 0,
           unit=""),
    Figure("small forwarded", "pods/s, 100 nodes, forwarded by a replica", _LEADER,
           _rows("small")),
    Figure("medium forwarded", "the same, 1,000 nodes", _LEADER, _rows("medium")),
    Figure("one node", "pods/s, 500 pods to one node of 1,000", "the same over all",
           _rows("medium"), least=0.9),
    Figure("large forwarded", "the same, forwarded by a replica", _LEADER, _rows("large")),
    Figure("writes", "writes per pod, without Events", "-", _rows("exact"), 1, unit=""),
    Figure("reads", "reads per pod", "-", _rows("exact"), 0, unit=""),
    Figure("percentage", "pods/s, 1,000 nodes, no extender, every node scored",
           _SAMPLE, _settings("medium")),
    Figure("percentage ours", "the same with gpushare", _SAMPLE, _settings("medium")),
    Figure("percentage 5000", "pods/s, 5,000 nodes, no extender, every node scored", _SAMPLE,
           _settings("large")),
    Figure("percentage 5000 ours", "the same with gpushare", _SAMPLE, _settings("large")),
)  # fmt: skip

_KEYS: Final = frozenset(figure.key for figure in FIGURES)


def note(key: str, value: float, detail: str = "") -> None:
    """Keep a figure for the table of this run, if there is one; the last value of a key counts."""
    if key not in _KEYS:
        raise KeyError(f"{key!r} is no figure: bench/figures.py has them")
    if path := os.environ.get(VARIABLE):
        with Path(path).open("ab") as file:
            file.write(msgspec.json.encode(Note(key, value, detail)) + b"\n")


def note_ratio(key: str, value: float, floor: float, unit: str) -> None:
    """Keep the ratio of a value to ``floor``; both are in ``unit``."""
    note(key, value / floor, f"{value:.3g} {unit} against {floor:.3g}")


def noted(path: Path) -> dict[str, Note]:
    """Return the figures that the programs of a run have kept, by key."""
    notes = msgspec.json.Decoder(Note).decode_lines(path.read_bytes())
    return {each.key: each for each in notes}


def table(notes: Mapping[str, Note]) -> str:
    """Return every figure in Markdown, with the command for those that were not measured."""
    rows: list[Sequence[str]] = [("figure", "floor", "measured", "to reach", "")]
    for figure in FIGURES:
        found = notes.get(figure.key)
        shown, verdict = f"not run: `python -m {figure.command}`", ""
        if found is not None:
            shown = f"{_rounded(found.value)} {figure.unit}".rstrip()
            shown += f" ({found.detail})" if found.detail else ""
            verdict = figure.judged(found.value)
        rows.append((figure.what, figure.floor, shown, figure.to_reach, verdict))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in rows
    ]  # as wide as its widest row, to be read where it is printed too
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def _rounded(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.2f}"  # noqa: PLR2004 - three digits
