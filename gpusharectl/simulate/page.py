"""All steps as one HTML page that needs nothing else, and no script to be read (pure)."""

from collections.abc import Iterator, Sequence
from html import escape
from importlib import resources
from typing import Final

from gpushare.text.counted import counted
from gpusharectl.simulate import drawing, view
from gpusharectl.simulate.drawing import Colours

CARDS: Final = 20_000  # drawn in all: a browser shows so many at once
MOST_NODES: Final = 40
LEAST_NODES: Final = 4
_HAPPENED: Final = 50
_WAITING: Final = 20


def draw(head: view.Head, steps: Sequence[view.Step]) -> str:
    """The page. Where there are too many cards to draw, each step shows the nodes it changed."""
    files = resources.files(__package__)
    colours = Colours()
    cards = sum(len(node.cards) for step in steps for node in step.nodes)
    most = MOST_NODES if cards <= CARDS else max(LEAST_NODES, MOST_NODES * CARDS // cards)
    text = files.joinpath("page.html").read_text(encoding="utf-8")
    parts = {
        "STYLE": drawing.STYLE,
        "ABOUT": _about(head),
        "STEPS": "\n".join(_step(step, len(steps), colours, most) for step in steps),
        "LIMITS": _items([*head.not_simulated, *(f"not looked at: {t}" for t in head.ignored)]),
    }
    before, *rest = text.split("@@")
    made = [before]
    for name, after in zip(rest[::2], rest[1::2], strict=True):
        made += [parts[name], after]
    return "".join(made)


def _about(head: view.Head) -> str:
    return escape(
        f"Amounts are units of {view.unit_name(head.unit_mib)}. "
        f"Nodes are chosen by {head.node_policy}, cards by {head.card_policy}."
    )


def _step(step: view.Step, count: int, colours: Colours, most: int) -> str:
    shown = view.nearest(step, most)
    left = len(step.nodes) - len(shown)
    summary = (
        f"{step.used} of {step.units} units used; most free on one card: {step.largest_free}; "
        f"{step.fragmentation:.0%} of what is free is of no use to pods like those that run"
    )
    happened = [view.said(each) for each in step.happened[:_HAPPENED]]
    if len(step.happened) > _HAPPENED:
        happened.append(f"and {len(step.happened) - _HAPPENED} more")
    when = f"{view.clock(step.at)} <small>step {step.number} of {count}</small>"
    parts = [
        f'<section id="step-{step.number}" aria-labelledby="at-{step.number}">',
        f'<h2 id="at-{step.number}">{when}</h2>',
        f"<p>{escape(summary)}</p>",
        _items(happened),
        f'<div class="wide">{drawing.inline(shown, step, colours)}</div>',
        f"<p>and {counted(left, 'more node')}</p>" if left else "",
        *_waiting(step),
        "</section>",
    ]
    return "\n".join(parts)


def _waiting(step: view.Step) -> Iterator[str]:
    for group in step.waiting[:_WAITING]:
        verb = "wait" if len(group.pods) > 1 else "waits"
        name = f"<strong>{escape(view.named(group))}</strong> {verb}"
        if group.says:
            yield f'<p class="waits">{name}: {escape(group.says)}</p>'
            continue
        yield f'<p class="waits">{name} for {escape(view.asks(group))}</p>'
        lines = [
            f"{node.name}: {node.why} ("
            + ", ".join(f"card {card.index}: {card.free} free" for card in node.cards)
            + ")"
            for node in group.nodes
        ]
        if group.nodes_left_out:
            lines.append(f"and {counted(group.nodes_left_out, 'more node')}")
        yield _items(lines)
    if len(step.waiting) > _WAITING:
        left = sum(len(group.pods) for group in step.waiting[_WAITING:])
        yield f'<p class="waits">and {left} more pods wait</p>'


def _items(lines: Sequence[str]) -> str:
    if not lines:
        return ""
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"
