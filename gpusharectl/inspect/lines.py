"""Format nodes and their GPUs for a terminal (pure)."""

import datetime as dt
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from rich.text import Text

from gpushare.answers.inspect import Device, NodeView, limit_text
from gpushare.answers.pending.phrases import gpus
from gpushare.cards.model import Health
from gpushare.text.amounts import free_gib, needed_gib, used_gib
from gpushare.text.counted import counted
from gpushare.text.durations import short
from gpusharectl.inspect.summary import Overview

BAR: Final = 32
LEAST_BAR: Final = 8
_SHARES: Final = (("█", "cyan"), ("▓", "blue"))
RESERVED: Final = ("▒", "yellow")
CLAIMED: Final = ("▚", "magenta")
OTHERS: Final = ("░", "dim")
_UNPLACED: Final = ("?", "red")
_FREE: Final = ("·", "dim")

_Part = tuple[tuple[str, str], int]


@dataclass(frozen=True, slots=True)
class _Columns:
    """The widths of a bar, an index, and the amounts before and after "of"."""

    bar: int
    index: int
    amount: int
    total: int


def draw(
    overview: Overview,
    now: dt.datetime,
    *,
    pods: bool = False,
    wide: bool = False,
    columns: int | None = None,
) -> Iterator[Text]:
    """Yield each node with a bar for each GPU; ``pods`` below it, ``wide`` with model and UUID.

    The pods of a single namespace are always shown. ``now`` is for ages. ``columns`` is the width
    of the terminal, None without a limit.
    """
    widths = _columns(overview, columns)
    for node in overview.nodes:
        unit = _unit(node, overview)
        yield _heading(node, overview, unit)
        if wide:
            yield from _limits(node)
        for card in node.devices:
            yield _card(node, card, overview, widths, now, wide=wide)
            if pods or overview.namespace:
                yield from _pods(card, widths.index, unit)
        for pod in node.unplaced:
            line = Text(f"  {_UNPLACED[0]:>{widths.index}} ", style=_UNPLACED[1])
            amount = needed_gib(pod.units * unit)
            where = "on an unknown GPU" if pod.on_every_card else "on no GPU"
            line.append(f"{pod.namespace}/{pod.name}  {amount}, {where}: ")
            yield line.append(pod.why)


def fitted(nodes: list[Text], sums: list[Text], rows: int) -> list[Text]:
    """Cut the lines to a terminal's rows; the sums keep up to two thirds of them."""
    if len(nodes) + len(sums) <= rows:
        return [*nodes, *sums]
    sums = _cut(sums, max(rows * 2 // 3, rows - len(nodes)), "omit --watch")
    return [*_cut(nodes, rows - len(sums), "name a node, or omit --watch"), *sums]


def _cut(lines: list[Text], rows: int, remedy: str) -> list[Text]:
    if len(lines) <= rows:
        return lines
    kept = max(0, rows - 1)
    return [*lines[:kept], Text(f"... {len(lines) - kept} more lines: {remedy}")]


def _columns(overview: Overview, columns: int | None) -> _Columns:
    cards = [
        (str(card.id), _amount(card, overview, unit), free_gib(card.total * unit))
        for node in overview.nodes
        for unit in (_unit(node, overview),)
        for card in node.devices
    ]
    index, amount, total = (max((len(each[at]) for each in cards), default=1) for at in range(3))
    bar = BAR
    if columns is not None:
        bar = max(LEAST_BAR, min(BAR, columns - amount - total - index - 24))
    return _Columns(bar, index, amount, total)


def _unit(node: NodeView, overview: Overview) -> int:
    """Return a node's unit in MiB; that of the cluster if the node states none."""
    return node.unit_mib or overview.unit_mib or 1


def _heading(node: NodeView, overview: Overview, unit: int) -> Text:
    line = Text(node.name, style="bold")
    if node.devices:
        at_least = "" if overview.complete or overview.namespace else "at least "
        by = f" by {overview.namespace}" if overview.namespace else ""
        used, total = used_gib(node.used * unit, node.total * unit), free_gib(node.total * unit)
        line.append(f"  {at_least}{used} of {total} used{by}", style="not bold")
    if node.devices and not node.plugin:
        line.append("  Aliyun gpushare: GPUs are assumed to be equal", style="not bold yellow")
    if node.unit_mib and overview.unit_mib and node.unit_mib != overview.unit_mib:
        text = (
            f"  counts in units of {unit} MiB, the cluster in units of {overview.unit_mib} MiB: "
            "no new pods"
        )
        line.append(text, style="not bold red")
    for remark in overview.remarks.get(node.name, ()):
        line.append(f"  {remark}", style="not bold yellow")
    if node.problem:
        line.append(f"  {node.problem}", style="not bold red")
    return line


def _limits(node: NodeView) -> Iterator[Text]:
    """Yield what keeps containers to their share, once for all GPUs of which it is the same."""
    found: dict[tuple[str, str], list[int]] = {}
    for card in node.devices:
        if card.enforces:
            found.setdefault((card.enforces, card.why_not_more), []).append(card.id)
    for (enforces, why), indexes in found.items():
        which = f"{gpus(indexes)}: " if len(found) > 1 else ""
        yield Text(f"  {which}{limit_text(enforces, why)}", style="dim")
    if node.reserve:
        yield Text(f"  {node.reserve} of each GPU is reserved and not shared", style="dim")


def _amount(card: Device, overview: Overview, unit: int) -> str:
    """Return the amount that a GPU's line begins with: free, or used by one namespace."""
    if overview.namespace:
        return used_gib(card.used * unit, card.total * unit)
    return free_gib(card.free * unit)


def _card(
    node: NodeView,
    card: Device,
    overview: Overview,
    columns: _Columns,
    now: dt.datetime,
    *,
    wide: bool,
) -> Text:
    unit = _unit(node, overview)
    parts: list[_Part] = [
        (_SHARES[place % len(_SHARES)], pod.used) for place, pod in enumerate(card.pods)
    ]
    unplaced = sum(pod.units for pod in node.unplaced if pod.on_every_card)
    if overview.namespace:
        others = max(0, card.total - card.free - card.used - unplaced)
        parts += [(_UNPLACED, unplaced), (OTHERS, others)]
    else:
        parts += [(_UNPLACED, unplaced), (RESERVED, card.reserved), (CLAIMED, card.claimed)]
    line = Text(f"  {card.id:>{columns.index}} ▕")
    for (sign, style), width in _widths(parts, card.total, columns.bar):
        line.append(sign * width, style=style)
    at_most, what = "", "free"
    if overview.namespace:
        what = "used"
    elif not overview.complete:
        at_most = "at most "
    amount, total = _amount(card, overview, unit), free_gib(card.total * unit)
    line.append(f"▏ {at_most}{amount:>{columns.amount}} of {total:>{columns.total}} {what}")
    if card.health != Health.HEALTHY:
        line.append(f"  {card.health}{_gone(card, now)}", style="bold red")
    if card.cordoned:
        line.append("  cordoned", style="yellow")
    if card.claimed and not overview.namespace:  # in the bar is only what no pod uses
        line.append(f"  {needed_gib(card.claimed * unit)} claimed", style=CLAIMED[1])
    over = card.used + card.reserved - card.total
    if over > 0:
        line.append(f"  {needed_gib(over * unit)} more used than it has", style="bold red")
    if wide:
        reserved = needed_gib(card.reserved * unit)
        line.append(f"  {reserved} reserved  {counted(len(card.pods), 'pod')}", style="dim")
        line.append(f"  {card.model or '-'}  {card.uuid}", style="dim")
    return line


def _gone(card: Device, now: dt.datetime) -> str:
    if not card.gone_since:
        return ""
    at = now.timestamp()
    for_, left = short(at - card.gone_since), short(card.forgotten_at - at)
    return f"  gone for {for_}, forgotten in {left} if unused"


def _widths(parts: Iterable[_Part], total: int, bar: int) -> Iterator[_Part]:
    """Yield the width of each part, rounded up to whole characters."""
    drawn = units = 0
    for sign, amount in parts:
        units += amount
        end = min(bar, -(-bar * units // total)) if total else 0
        if end > drawn:
            yield sign, end - drawn
            drawn = end
    yield _FREE, bar - drawn


def _pods(card: Device, names: int, unit: int) -> Iterator[Text]:
    for place, pod in enumerate(card.pods):
        sign, style = _SHARES[place % len(_SHARES)]
        line = Text(" " * (names + 4))
        line.append(sign, style=style)
        yield line.append(f" {pod.namespace}/{pod.name}  {needed_gib(pod.used * unit)}")
