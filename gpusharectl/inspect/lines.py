"""Format nodes and their GPUs for a terminal (pure)."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from rich.text import Text

from gpushare.answers.inspect import Device, NodeView
from gpushare.cards.model import Health
from gpushare.text.counted import counted
from gpusharectl.inspect.summary import Overview
from gpusharectl.terminal.output import unit_name

BAR: Final = 32
LEAST_BAR: Final = 8
_SHARES: Final = (("█", "cyan"), ("▓", "blue"))
_RESERVED: Final = ("▒", "yellow")
_UNPLACED: Final = ("?", "red")
_FREE: Final = ("·", "dim")

_Part = tuple[tuple[str, str], int]


@dataclass(frozen=True, slots=True)
class _Columns:
    """The widths of a bar, an index and an amount."""

    bar: int
    index: int
    units: int


def draw(
    overview: Overview, *, pods: bool = False, wide: bool = False, columns: int | None = None
) -> Iterator[Text]:
    """Yield each node with a bar for each GPU; ``pods`` below it, ``wide`` with model and UUID.

    ``columns`` is the width of the terminal, None without a limit.
    """
    cards = [card for node in overview.nodes for card in node.devices]
    digits = max((len(str(card.total)) for card in cards), default=1)
    names = max((len(str(card.id)) for card in cards), default=1)
    bar = BAR if columns is None else max(LEAST_BAR, min(BAR, columns - 2 * digits - names - 24))
    widths = _Columns(bar, names, digits)
    for node in overview.nodes:
        yield _heading(node, overview)
        for card in node.devices:
            yield _card(node, card, overview, widths, wide=wide)
            if pods:
                yield from _pods(card, names)
        for pod in node.unplaced:
            line = Text(f"  {_UNPLACED[0]:>{names}} ", style=_UNPLACED[1])
            line.append(f"{pod.namespace}/{pod.name} {pod.units}, on an unknown GPU: ")
            yield line.append(pod.why)
    yield from below(overview)


def fitted(lines: list[Text], overview: Overview, rows: int) -> list[Text]:
    """Cut the lines to a terminal's rows; keep those below all nodes."""
    end = len(list(below(overview)))
    if len(lines) <= rows:
        return lines
    kept = max(0, rows - end - 1)
    more = Text(f"... {len(lines) - end - kept} more lines: name a node, or omit --watch")
    return [*lines[:kept], more, *lines[len(lines) - end :]]


def below(overview: Overview) -> Iterator[Text]:
    """Yield the lines about all nodes together."""
    for place in overview.pods:
        where = ", ".join(place.cards) or "an unknown GPU"
        yield Text(f"{place.namespace}/{place.name}  {place.units} of {where} on {place.node}")
    if overview.nodes or not overview.pods:
        yield from _summary(overview)
    if any(card.reserved for node in overview.nodes for card in node.devices):
        yield Text(f"{_RESERVED[0]} reserved for pods that are being bound", style="dim")
    for text in overview.not_shown:
        yield Text(text, style="dim")


def _heading(node: NodeView, overview: Overview) -> Text:
    total = sum(card.total for card in node.devices)
    line = Text(node.name, style="bold")
    unit = unit_name(node.unit_mib or overview.unit_mib)
    line.append(f"  {node.used} of {total} {unit} used", style="not bold")
    if node.devices and not node.plugin:
        line.append("  Aliyun gpushare: GPUs are assumed to be equal", style="not bold yellow")
    if node.unit_mib and node.unit_mib != overview.unit_mib:
        text = f"  counts in {unit}, the cluster in {unit_name(overview.unit_mib)}: no new pods"
        line.append(text, style="not bold red")
    for remark in overview.remarks.get(node.name, ()):
        line.append(f"  {remark}", style="not bold yellow")
    if node.problem:
        line.append(f"  {node.problem}", style="not bold red")
    return line


def _card(
    node: NodeView, card: Device, overview: Overview, columns: _Columns, *, wide: bool
) -> Text:
    unplaced = sum(pod.units for pod in node.unplaced)
    parts: list[_Part] = [
        (_SHARES[place % len(_SHARES)], pod.used) for place, pod in enumerate(card.pods)
    ]
    parts += [(_UNPLACED, unplaced), (_RESERVED, card.reserved)]
    line = Text(f"  {card.id:>{columns.index}} ▕")
    for (sign, style), width in _widths(parts, card.total, columns.bar):
        line.append(sign * width, style=style)
    at_most = "" if overview.complete else "at most "
    line.append(f"▏ {at_most}{card.free:>{columns.units}} of {card.total:>{columns.units}} free")
    if card.health != Health.HEALTHY:
        line.append(f"  {card.health}", style="bold red")
    if card.cordoned:
        line.append("  cordoned", style="yellow")
    over = card.used + card.reserved - card.total
    if over > 0:
        line.append(f"  {over} more used than it has", style="bold red")
    if wide:
        line.append(f"  {card.reserved} reserved  {counted(len(card.pods), 'pod')}", style="dim")
        line.append(f"  {card.model or '-'}  {card.uuid}", style="dim")
    return line


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


def _pods(card: Device, names: int) -> Iterator[Text]:
    for place, pod in enumerate(card.pods):
        sign, style = _SHARES[place % len(_SHARES)]
        line = Text(" " * (names + 4))
        line.append(sign, style=style)
        yield line.append(f" {pod.namespace}/{pod.name}  {pod.used}")


def _summary(overview: Overview) -> Iterator[Text]:
    """Yield lines that fit a terminal of 80 columns."""
    found, unit = overview.summary, unit_name(overview.unit_mib)
    at_most = "" if overview.complete else "at most "
    line = Text(
        f"{counted(found.nodes, 'node')}, {counted(found.cards, 'GPU')}: {found.total} {unit}, "
        f"{found.used} used, {at_most}{found.free} free"
    )
    if found.reserved:
        line.append(f", {found.reserved} reserved")
    yield line
    if (best := found.largest_free) is not None:
        yield Text(
            f"the largest free part of one GPU is {best.units} ({best.node} GPU {best.card})"
        )
    if found.waiting:
        yield Text(counted(found.waiting, "Pending pod"), style="yellow")
