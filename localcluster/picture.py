"""A picture of every node's cards and of whose shares lie on them, for a terminal (pure)."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

WIDTH: Final = 48
_FREE: Final = "·"
_FILL: Final = "█▓▒░"
_UNPLACED: Final = "?"


def draw(nodes: Iterable[Mapping[str, Any]]) -> str:
    """Draw the nodes of the extender's inspect JSON: a bar a card, a legend of pods beside it."""
    return "\n".join(line for node in nodes for line in _node(node))


def _node(node: Mapping[str, Any]) -> list[str]:
    lines = [f"{node['name']}  {node['usedGPU']} of {node['totalGPU']} units used"]
    unplaced = node["unplaced"]
    for card in node["devs"]:
        lines.append(f"  card {card['id']} {_bar(card, sum(pod['units'] for pod in unplaced))}")
        if card["health"] != "healthy":
            lines[-1] += f"  {card['health']}"
        lines += [
            f"         {_FILL[place % len(_FILL)]} {pod['name']} {pod['usedGPU']}"
            for place, pod in enumerate(card["pods"])
        ]
    lines += [
        f"         {_UNPLACED} {pod['name']} {pod['units']}: {pod['why']}" for pod in unplaced
    ]
    if node["problem"]:
        lines.append(f"  {node['problem']}")
    return lines


def _bar(card: Mapping[str, Any], unplaced: int) -> str:
    total = card["totalGPU"]
    parts = [(_FILL[place % len(_FILL)], pod["usedGPU"]) for place, pod in enumerate(card["pods"])]
    parts.append((_UNPLACED, unplaced))
    drawn, units = "", 0
    for sign, amount in parts:
        units += amount
        end = min(WIDTH, -(-WIDTH * units // total)) if total else 0
        drawn += sign * (end - len(drawn))
    bar = drawn + _FREE * (WIDTH - len(drawn))
    return f"▕{bar}▏ {card['usedGPU']:>6} of {total:>6}, {card['free']:>6} free"
