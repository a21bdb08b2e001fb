"""Judges what the driver, the frameworks and nvidia-smi have said (pure)."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from bench.limits.table import Row, judged, not_here
from deviceplugin.driver.interface import MemoryLimit
from deviceplugin.isolation.node_isolation import MIG
from deviceplugin.isolation.variables import CONTEXT_MIB
from gpushare.cards.model import Card
from gpushare.contract import BY_DRIVER

FIRST_LIMITING: Final = 615  # the first driver that limits memory
FIRST_TORCH: Final = (2, 10)  # the first PyTorch that reads its part from the variable
MIB: Final = 1 << 20
SAME_MIB: Final = 2  # one of both rounds up
SHOWN: Final = 60  # characters of a framework's error
SAME_PERCENT: Final = 20  # two programs sample at different times


class Report(msgspec.Struct, omit_defaults=True):
    """What ``child.py`` has printed, or in ``error`` why it printed nothing."""

    version: str = ""
    absent: str = ""
    error: str = ""
    total_mib: int | None = None
    below: str | None = None
    above: str | None = None
    reached_mib: int | None = None
    stopped_by: str = ""
    taken_mib: int | None = None

    def __str__(self) -> str:
        return msgspec.json.encode(self).decode()


@dataclass(frozen=True, slots=True)
class Framework:
    """``full`` is in the error with which it says that there is no memory left."""

    name: str
    title: str
    full: str


TORCH: Final = Framework("torch", "PyTorch", "OutOfMemoryError")
JAX: Final = Framework("jax", "JAX", "RESOURCE_EXHAUSTED")


@dataclass(frozen=True, slots=True)
class Trial:
    """A share of one GPU, of which a process can allocate ``allocatable_mib`` by the plugin."""

    share_mib: int
    allocatable_mib: int
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def below_mib(self) -> int:
        return self.allocatable_mib * 9 // 10


def statement(card: Card, version: str) -> Row:
    """Judge what the plugin states of a GPU, by the version of its driver."""
    check = f"limits by the driver, GPU {card.index}"
    major = version.partition(".")[0]
    if not major.isdecimal():
        return not_here(check, f"{version!r} is no version of a driver: {card.why_not_more}")
    too_old = f"driver {version} cannot limit memory; R{FIRST_LIMITING} and newer can"
    if int(major) < FIRST_LIMITING:
        return judged(check, card.why_not_more == too_old, card.why_not_more or "possible")
    if card.enforces == BY_DRIVER:
        return judged(check, is_right=True, seen="possible")
    if card.why_not_more == MIG or "cgroup v2" in card.why_not_more:
        return not_here(check, card.why_not_more)
    return judged(check, is_right=False, seen=card.why_not_more)


def reading(cgroup: str, limit: MemoryLimit, why_no_limit: str) -> Row:
    """Judge whether the limit of a cgroup can be read."""
    check = "limit of a cgroup is readable"
    if why_no_limit:
        return not_here(check, why_no_limit)
    hard = "no limit" if limit.hard_bytes is None else f"{limit.hard_bytes // MIB} MiB"
    used = "not told" if limit.used_bytes is None else f"{limit.used_bytes // MIB} MiB"
    seen = limit.why_unknown or f"{cgroup}: {hard}, used {used}"
    return judged(check, not limit.why_unknown, seen)


def alone(framework: Framework, trial: Trial, report: Report) -> list[Row]:
    """Judge one process that tried an amount below its share, and one above."""
    below, above = f"{framework.title} below its share", f"{framework.title} above its share"
    if report.absent:
        return [not_here(check, report.absent) for check in (below, above)]
    if report.error:
        return [judged(check, is_right=False, seen=report.error) for check in (below, above)]
    seen = report.below or f"{trial.below_mib} of {trial.allocatable_mib} MiB ({report.version})"
    first = judged(below, report.below == "", seen)
    if framework is TORCH and _version(report.version) < FIRST_TORCH:
        newer = ".".join(map(str, FIRST_TORCH))
        return [first, not_here(above, f"{report.version} reads no limit; {newer} and newer do")]
    reached = report.reached_mib
    is_kept = framework.full in (report.above or "") and framework.full in report.stopped_by
    seen = (
        f"{trial.share_mib} MiB: {(report.above or 'allocated')[:SHOWN]}; in blocks {reached} MiB "
        f"of {trial.allocatable_mib}, then {report.stopped_by[:SHOWN] or 'no error'}"
    )
    is_right = is_kept and reached is not None and reached <= trial.allocatable_mib
    return [first, judged(above, is_right, seen)]


def together(
    framework: Framework, trial: Trial, reports: Sequence[Report], used_mib: Sequence[int | None]
) -> list[Row]:
    """Judge processes that hold their shares at the same time.

    ``used_mib`` is what the driver says that each of them uses.
    """
    check = f"two processes with {framework.title} at once"
    context = f"CUDA's context with {framework.title}"
    if absent := next((each.absent for each in reports if each.absent), ""):
        return [not_here(check, absent), not_here(context, absent)]
    if error := next((each.error for each in reports if each.error), ""):
        return [judged(check, is_right=False, seen=error), not_here(context, "none ran")]
    told = [used for used in used_mib if used is not None]
    row = judged(
        check,
        all(used <= trial.share_mib for used in told),
        f"each has {trial.below_mib} MiB; the driver says {_mib(used_mib)} of {trial.share_mib}",
    )
    beside = [
        used - report.taken_mib
        for report, used in zip(reports, used_mib, strict=True)
        if used is not None and report.taken_mib is not None
    ]
    if not beside:
        return [row, not_here(context, "the driver does not tell the memory of these processes")]
    seen = f"{_mib(beside)}; the plugin counts on {CONTEXT_MIB}"
    return [row, judged(context, max(beside) <= CONTEXT_MIB, seen)]


@dataclass(frozen=True, slots=True)
class Use:
    """What the plugin's driver layer and nvidia-smi say about one process."""

    title: str
    pid: int
    plugin_mib: int | None = None
    smi_mib: int | None = None
    plugin_sm: float | None = None
    smi_sm: float | None = None

    def __str__(self) -> str:
        return (
            f"{self.title}, pid {self.pid}: plugin {_or(self.plugin_mib)} MiB, nvidia-smi "
            f"{_or(self.smi_mib)} MiB, difference {_difference(self.plugin_mib, self.smi_mib)}; "
            f"SM plugin {_or(self.plugin_sm)} %, nvidia-smi {_or(self.smi_sm)} %, difference "
            f"{_difference(self.plugin_sm, self.smi_sm)}"
        )


MEMORY_OF_USE: Final = "memory of two processes"
SM_OF_USE: Final = "SM utilization of two processes"


def memory(uses: Sequence[Use]) -> Row:
    """Compare the memory of processes."""
    pairs = [(use.plugin_mib, use.smi_mib) for use in uses]
    return _compared(MEMORY_OF_USE, pairs, SAME_MIB, "MiB")


def sm(uses: Sequence[Use]) -> Row:
    """Compare the SM utilization; the first process must use more than the second."""
    row = _compared(SM_OF_USE, [(use.plugin_sm, use.smi_sm) for use in uses], SAME_PERCENT, "%")
    first, second = (use.plugin_sm for use in uses)
    if first is not None and second is not None and first <= second:
        return judged(row.check, is_right=False, seen=f"{row.seen}; the busier one has no more")
    return row


def _compared(
    check: str, pairs: Sequence[tuple[float | None, float | None]], most: int, unit: str
) -> Row:
    if all(own is None and other is None for own, other in pairs):
        return not_here(check, "the driver tells neither the plugin nor nvidia-smi")
    seen = ", ".join(f"{_or(own)} and {_or(other)} {unit}" for own, other in pairs)
    is_right = all(
        own is not None and other is not None and abs(own - other) <= most for own, other in pairs
    )
    return judged(check, is_right, f"{seen} (plugin and nvidia-smi)")


def _version(title: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", title)[:2])


def _mib(amounts: Sequence[int | None]) -> str:
    return " and ".join(_or(each) for each in amounts) + " MiB"


def _or(amount: float | None) -> str:
    return "?" if amount is None else f"{amount:.0f}"


def _difference(own: float | None, other: float | None) -> str:
    return "?" if own is None or other is None else f"{own - other:+.0f}"
