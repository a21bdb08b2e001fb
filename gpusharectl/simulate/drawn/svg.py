"""Draw a step as SVG: a bar to scale for each GPU, dark or light like the reader's theme (pure)."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from html import escape
from itertools import count
from textwrap import wrap
from typing import Final

from gpushare.answers import gang_rows
from gpushare.text.counted import counted
from gpusharectl.simulate import view

STYLE: Final = """
.g text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:#1f2328}
.g .n{font-weight:600}
.g .m{fill:#59636e}
.g .w{fill:#9a3412}
.g .c{fill:#eef1f4;stroke:#8c959f}
.g .o{stroke-dasharray:4 3}
.g .s{stroke:#fff;stroke-width:1}
.g .new{stroke:#1f2328;stroke-width:2}
.g .l{fill:#1f2328}
.g .p0{fill:#8ecae6}.g .p1{fill:#b7d97a}.g .p2{fill:#ffd166}.g .p3{fill:#f4a6b7}
.g .p4{fill:#cdb4f6}.g .p5{fill:#8fdcc2}.g .p6{fill:#f7b27a}.g .p7{fill:#c3ccd6}
.g .u{fill:#d1242f;fill-opacity:.35}
@media (prefers-color-scheme:dark){
.g text{fill:#e6edf3}.g .m{fill:#9198a1}.g .w{fill:#ffa657}.g .l{fill:#1f2328}
.g .c{fill:#1b2129;stroke:#6e7681}.g .s{stroke:#0d1117}.g .new{stroke:#fff}
}
"""
WIDTH: Final = 760
_LEFT: Final = 66  # of a bar
_BAR: Final = 380
_ROW: Final = 30
_BAR_HIGH: Final = 22
_CHARACTER: Final = 7.9
_COLORS: Final = 8
_LINE: Final = 94  # characters
_REASONS: Final = 4


_Colors = defaultdict[tuple[str, str], int]  # a number for each pod


def draw(step: view.Step, *, most: int = 40) -> str:
    """Return an SVG file with at most so many nodes, and the Pending pods."""
    shown = view.nearest(step, most)
    body, high = _nodes(shown, step)
    lines = list(_waiting(step))
    if len(shown) < len(step.nodes):
        lines.insert(0, ("m", f"and {counted(len(step.nodes) - len(shown), 'more node')}"))
    lines = [(kind, line) for kind, text in lines for line in wrap(text, _LINE)]
    for place, (kind, text) in enumerate(lines):
        body += f'<text x="8" y="{high + 20 + 20 * place}" class="{kind}">{escape(text)}</text>\n'
    high += 20 * len(lines) + 12
    described = escape(_described(shown, step.unit_mib))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{high}" '
        f'viewBox="0 0 {WIDTH} {high}" role="img" aria-label="{described}" '
        'class="g">\n'
        f"<style>{STYLE}</style>\n{body}</svg>\n"
    )


def _nodes(shown: Iterable[view.Node], step: view.Step) -> tuple[str, int]:
    """Return the drawn nodes, and their height."""
    colors = _Colors(count().__next__)
    new, unit = view.placed(step), step.unit_mib
    parts: list[str] = []
    y = 6
    for node in shown:
        y += 20
        used, units = view.needed(node.used, unit), view.free(node.units, unit)
        text = f"{used} of {units} used"
        closed = f'<tspan class="w"> {escape(node.closed)}</tspan>' if node.closed else ""
        parts.append(
            f'<text x="8" y="{y}"><tspan class="n">{escape(node.name)}</tspan>'
            f'<tspan class="m">  {text}</tspan>{closed}</text>'
        )
        y += 8
        for card in node.cards:
            parts.extend(_card(card, node, y, colors, new, unit=unit))
            y += _ROW
        for pod in node.unplaced:
            y += 14
            told = escape(f"{pod.name} {view.needed(pod.units, unit)}: {pod.why}")
            parts.append(f'<text x="8" y="{y}" class="w">{told}</text>')
        y += 6
    return "\n".join(parts) + "\n", y


def _card(
    card: view.Card,
    node: view.Node,
    y: int,
    colors: _Colors,
    new: view.Placed,
    *,
    unit: int,
) -> Iterator[str]:
    middle = y + 16
    kind = "c o" if card.marks else "c"
    yield f'<text x="8" y="{middle}" class="m">GPU {card.index}</text>'
    yield f'<rect x="{_LEFT}" y="{y}" width="{_BAR}" height="{_BAR_HIGH}" class="{kind}"/>'
    scale = _BAR / card.units if card.units else 0.0
    x = float(_LEFT)
    for pod in card.pods:
        wide = min(pod.units * scale, _LEFT + _BAR - x)
        color = colors[pod.namespace, pod.name] % _COLORS
        amount = view.needed(pod.units, unit)
        look = "new" if (node.name, pod.namespace, pod.name) in new else "s"
        yield (
            f"<g><title>{escape(pod.namespace)}/{escape(pod.name)}: {amount}</title>"
            f'<rect x="{x:.1f}" y="{y}" width="{wide:.1f}" height="{_BAR_HIGH}" '
            f'class="{look} p{color}"/>{_label(pod.name, amount, x, middle, wide)}</g>'
        )
        x += wide
    unplaced = sum(pod.units for pod in node.unplaced if pod.everywhere)
    if unplaced:
        wide = min(unplaced * scale, _LEFT + _BAR - x)
        yield f'<rect x="{x:.1f}" y="{y}" width="{wide:.1f}" height="{_BAR_HIGH}" class="u"/>'
    free, units = view.free(card.free, unit), view.free(card.units, unit)
    text = escape(", ".join([f"{free} of {units} free", *card.marks]))
    kind = "w" if card.marks else "m"
    yield f'<text x="{_LEFT + _BAR + 10}" y="{middle}" class="{kind}">{text}</text>'


def _label(name: str, amount: str, x: float, y: int, wide: float) -> str:
    """Return a pod's name and amount as far as they fit."""
    room = int((wide - 8) / _CHARACTER)
    whole = f"{name} {amount}"
    text = whole if len(whole) <= room else name
    if len(text) > room:
        text = text[: room - 1] + "…" if room > 3 else ""  # noqa: PLR2004 - less is useless
    return f'<text x="{x + 5:.1f}" y="{y}" class="l">{escape(text)}</text>' if text else ""


def _waiting(step: view.Step) -> Iterator[tuple[str, str]]:
    for row in gang_rows.rows(step.waiting):
        group = row[0]
        if group.says:
            yield "w", f"{view.pending(row)}: {group.says}"
            continue
        needs = view.needs(group, step.unit_mib) if group.nodes else view.why(step, row)
        yield "w", f"{view.pending(row)}: {needs}"
        for node in group.nodes[:_REASONS]:
            yield "m", f"{node.name}: {node.why or view.room(node, group)}"
        left = group.nodes_left_out + max(0, len(group.nodes) - _REASONS)
        if left:
            yield "m", f"and {counted(left, 'more node')}"


def _described(shown: Iterable[view.Node], unit: int) -> str:
    """Describe the picture for screen readers."""
    return "; ".join(
        f"{node.name}, GPU {card.index}: "
        + (", ".join(f"{pod.name} {view.needed(pod.units, unit)}" for pod in card.pods) or "empty")
        + f", {view.free(card.free, unit)} free"
        for node in shown
        for card in node.cards
    )
