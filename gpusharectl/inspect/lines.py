"""Nodes and their cards as lines for a terminal (pure)."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from rich.text import Text

from gpushare.answers.inspect import Device, NodeView
from gpushare.cards.model import Health
from gpushare.text.counted import counted
from gpusharectl.inspect.summary import Sight
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
    """How many signs a bar, an index and an amount have."""

    bar: int
    index: int
    units: int


def draw(
    sight: Sight, *, pods: bool = False, wide: bool = False, columns: int | None = None
) -> Iterator[Text]:
    """Node after node, a bar a card; ``pods`` below each card, ``wide`` with what the card is.

    ``columns`` is how wide the terminal is, None where nothing limits it.
    """
    cards = [card for node in sight.nodes for card in node.devices]
    digits = max((len(str(card.total)) for card in cards), default=1)
    names = max((len(str(card.id)) for card in cards), default=1)
    bar = BAR if columns is None else max(LEAST_BAR, min(BAR, columns - 2 * digits - names - 24))
    widths = _Columns(bar, names, digits)
    for node in sight.nodes:
        yield _heading(node, sight)
        for card in node.devices:
            yield _card(node, card, sight, widths, wide=wide)
            if pods:
                yield from _pods(card, names)
        for pod in node.unplaced:
            line = Text(f"  {_UNPLACED[0]:>{names}} ", style=_UNPLACED[1])
            line.append(f"{pod.namespace}/{pod.name} {pod.units}, on which GPU is not known: ")
            yield line.append(pod.why)
    yield from below(sight)


def fitted(lines: list[Text], sight: Sight, rows: int) -> list[Text]:
    """As many of the lines as a terminal has rows: what is below all nodes is always there."""
    end = len(list(below(sight)))
    if len(lines) <= rows:
        return lines
    kept = max(0, rows - end - 1)
    more = Text(f"... {len(lines) - end - kept} more lines: name a node, or go without --watch")
    return [*lines[:kept], more, *lines[len(lines) - end :]]


def below(sight: Sight) -> Iterator[Text]:
    """What is said of all nodes together."""
    for place in sight.pods:
        where = ", ".join(place.cards) or "a GPU that is not known"
        yield Text(f"{place.namespace}/{place.name}  {place.units} of {where} on {place.node}")
    if sight.nodes or not sight.pods:
        yield from _summary(sight)
    if any(card.reserved for node in sight.nodes for card in node.devices):
        yield Text(f"{_RESERVED[0]} reserved for pods that are being bound", style="dim")
    for text in sight.not_shown:
        yield Text(text, style="dim")


def _heading(node: NodeView, sight: Sight) -> Text:
    total = sum(card.total for card in node.devices)
    line = Text(node.name, style="bold")
    unit = unit_name(node.unit_mib or sight.unit_mib)
    line.append(f"  {node.used} of {total} {unit} used", style="not bold")
    if node.devices and not node.plugin:
        line.append("  older plugin: cards are taken to be equal", style="not bold yellow")
    if node.unit_mib and node.unit_mib != sight.unit_mib:
        text = f"  counts in {unit}, the cluster in {unit_name(sight.unit_mib)}: takes nothing new"
        line.append(text, style="not bold red")
    for remark in sight.remarks.get(node.name, ()):
        line.append(f"  {remark}", style="not bold yellow")
    if node.problem:
        line.append(f"  {node.problem}", style="not bold red")
    return line


def _card(node: NodeView, card: Device, sight: Sight, columns: _Columns, *, wide: bool) -> Text:
    unplaced = sum(pod.units for pod in node.unplaced)
    parts: list[_Part] = [
        (_SHARES[place % len(_SHARES)], pod.used) for place, pod in enumerate(card.pods)
    ]
    parts += [(_UNPLACED, unplaced), (_RESERVED, card.reserved)]
    line = Text(f"  {card.id:>{columns.index}} ▕")
    for (sign, style), width in _widths(parts, card.total, columns.bar):
        line.append(sign * width, style=style)
    at_most = "" if sight.complete else "at most "
    line.append(f"▏ {at_most}{card.free:>{columns.units}} of {card.total:>{columns.units}} free")
    if card.health != Health.HEALTHY:
        line.append(f"  {card.health}", style="bold red")
    if card.cordoned:
        line.append("  cordoned", style="yellow")
    over = card.used + card.reserved - card.total
    if over > 0:
        line.append(f"  {over} more than it has", style="bold red")
    if wide:
        line.append(f"  {card.reserved} reserved  {counted(len(card.pods), 'pod')}", style="dim")
        line.append(f"  {card.model or '-'}  {card.uuid}", style="dim")
    return line


def _widths(parts: Iterable[_Part], total: int, bar: int) -> Iterator[_Part]:
    """How many signs of each part: none but the last is off by more than one."""
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


def _summary(sight: Sight) -> Iterator[Text]:
    """In lines that a terminal of 80 columns need not break."""
    found, unit = sight.summary, unit_name(sight.unit_mib)
    at_most = "" if sight.complete else "at most "
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
        yield Text(f"{counted(found.waiting, 'pod')} without a node", style="yellow")
