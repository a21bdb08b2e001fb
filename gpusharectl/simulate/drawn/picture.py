"""Draw a step for a terminal: a bar for each GPU with the pods' names in it (pure)."""

from collections import defaultdict
from collections.abc import Iterator
from itertools import count, pairwise
from typing import Final

from rich.text import Text

from gpushare.answers import gang_rows
from gpushare.placement.reasons import NO_ROOM
from gpushare.text.counted import counted
from gpusharectl.simulate import view

NODES_SHOWN: Final = 20
WAITING_SHOWN: Final = 10
HAPPENED_SHOWN: Final = 20
_FREE: Final = "·"
_FILL: Final = "█▓▒░"
_UNPLACED: Final = "?"
_COLORS: Final = ("green", "cyan", "yellow", "magenta", "blue", "red")
_WIDEST: Final = 64
_NARROWEST: Final = 20
_BESIDE: Final = 32  # columns for the GPU's index and its amounts


class Painter:
    """Draws steps; with colors, each pod keeps its color."""

    def __init__(self, width: int, *, colored: bool) -> None:
        self._width = max(_NARROWEST, min(_WIDEST, width - _BESIDE))
        self._rule = width
        self._colored = colored
        self._unit = 1  # of the step that is drawn
        self._colors = defaultdict[tuple[str, str], int](count().__next__)

    def draw(self, step: view.Step) -> Iterator[Text]:
        head = f"── {step.title or view.clock(step.at)} "
        self._unit = step.unit_mib
        used = f"{view.needed(step.used, self._unit)} of {view.free(step.units, self._unit)} used"
        free = f" {used}, most free on one GPU: {view.free(step.largest_free, self._unit)} "
        yield Text(
            head + "─" * max(2, self._rule - len(head) - len(free) - 2) + free + "──", "bold"
        )
        happened = [] if step.title else view.lines(step)  # a whole cluster appears
        for each in happened[:HAPPENED_SHOWN]:
            yield Text(each)
        if len(happened) > HAPPENED_SHOWN:
            yield Text(f"  and {len(happened) - HAPPENED_SHOWN} more")
        if happened:
            yield Text()
        shown, new = view.nearest(step, NODES_SHOWN), view.placed(step)
        for node in shown:
            yield from self._node(node, new)
        if len(shown) < len(step.nodes):
            yield Text(f"and {counted(len(step.nodes) - len(shown), 'more node')}")
        for quota in step.quotas[:NODES_SHOWN]:
            yield Text(view.quota(quota, self._unit))
        yield from self._waiting(step)
        yield Text()

    def _node(self, node: view.Node, new: view.Placed) -> Iterator[Text]:
        line = Text(node.name, "bold")
        used, units = view.needed(node.used, self._unit), view.free(node.units, self._unit)
        line.append(f"  {used} of {units} used", "not bold")
        if node.closed:
            line.append(f"  {node.closed}", "not bold red")
        yield line
        for card in node.cards:
            yield from self._card(card, node, new)
        for pod in node.unplaced:
            yield Text(
                f"       {_UNPLACED} {pod.name} {view.needed(pod.units, self._unit)}: {pod.why}"
            )

    def _card(self, card: view.Card, node: view.Node, new: view.Placed) -> Iterator[Text]:
        line = Text(f"  GPU {card.index} ▕")
        below: list[Text] = []
        ends = _ends([pod.units for pod in card.pods], card.units, self._width)
        for number, (pod, (start, end)) in enumerate(zip(card.pods, pairwise(ends), strict=True)):
            style, fill = self._look(pod, number)
            style += " bold" if (node.name, pod.namespace, pod.name) in new else ""
            cells = end - start
            fits = len(pod.name) < cells or len(pod.name) == cells > 1
            shown = pod.name if fits else ""
            line.append(shown + fill * (cells - len(shown)), style)
            if not fits:
                legend = Text("        ")
                legend.append(fill if fill.strip() else "  ", style)
                amount = view.needed(pod.units, self._unit)
                below.append(legend.append(f" {pod.name} {amount}"))
        unplaced = sum(pod.units for pod in node.unplaced if pod.everywhere)
        rest = self._width - ends[-1]
        odd = min(rest, -(-self._width * unplaced // card.units) if card.units else 0)
        line.append(_UNPLACED * odd + _FREE * (rest - odd), "dim")
        free, units = (view.free(each, self._unit) for each in (card.free, card.units))
        line.append(f"▏ {free} of {units} free")
        if card.marks:
            line.append(f", {', '.join(card.marks)}", "red")
        if card.model:
            line.append(f"  {card.model}", "dim")
        yield line
        yield from below

    def _waiting(self, step: view.Step) -> Iterator[Text]:
        found = gang_rows.rows(step.waiting)
        for row in found[:WAITING_SHOWN]:
            group = row[0]
            line = Text("? ")
            line.append(view.pending(row), "bold")
            yield line.append(f": {view.why(step, row)}", "not bold")
            for node in group.nodes:
                yield Text(f"    {node.name}: {node.why or view.room(node, group)}")
                free = ", ".join(self._card_why(card, node.why) for card in node.cards)
                if free:
                    yield Text(f"      {free}", "dim")
            if group.nodes_left_out:
                yield Text(f"    and {counted(group.nodes_left_out, 'more node')}")
        if len(found) > WAITING_SHOWN:
            left = sum(len(group.pods) for row in found[WAITING_SHOWN:] for group in row)
            yield Text(f"? and {counted(left, 'more Pending pod')}")

    def _card_why(self, card: view.CardWhy, of_node: str) -> str:
        """Describe a GPU without repeating its node's reason."""
        text = f"GPU {card.index} has {view.free(card.free, self._unit)} free"
        return text if card.why in {"", of_node, NO_ROOM.text} else f"{text} ({card.why})"

    def _look(self, pod: view.Share, number: int) -> tuple[str, str]:
        """Return the style of a pod's part of a bar, and what fills it."""
        if not self._colored:
            return "", _FILL[number % len(_FILL)]
        color = self._colors[pod.namespace, pod.name] % len(_COLORS)
        return f"black on {_COLORS[color]}", " "


def _ends(amounts: list[int], total: int, width: int) -> list[int]:
    """Return where each part of a bar ends; each gets at least one column, if there are enough."""
    ends, units = [0], 0
    for amount in amounts:
        units += amount
        end = min(width, round(width * units / total)) if total else width
        ends.append(min(width, max(end, ends[-1] + 1)))
    return ends
