"""Draws every node's GPUs and the shares on them for a terminal (pure)."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

WIDTH: Final = 48
_FREE: Final = "·"
_NEW: Final = "█"
_FILL: Final = "▓▒░"
_UNPLACED: Final = "?"


def draw(nodes: Iterable[Mapping[str, Any]], new: str = "") -> str:
    """Draw the nodes of the extender's inspect JSON: one bar per GPU, with its pods below.

    The pod called ``new`` is highlighted.
    """
    return "\n".join(line for node in nodes for line in _node(node, new))


def _node(node: Mapping[str, Any], new: str) -> list[str]:
    lines = [f"{node['name']}  {node['usedGPU']} of {node['totalGPU']} units used"]
    unplaced = node["unplaced"]
    everywhere = sum(pod["units"] for pod in unplaced if pod["onEveryGPU"])
    for card in node["devs"]:
        signs = _signs(card, new)
        parts = [(sign, pod["usedGPU"]) for sign, pod in zip(signs, card["pods"], strict=True)]
        parts.append((_UNPLACED, everywhere))
        bar = _bar(parts, card["totalGPU"])
        health = "" if card["health"] == "healthy" else f"  {card['health']}"
        lines.append(
            f"  GPU {card['id']} ▕{bar}▏ {card['free']:>6} of {card['totalGPU']} free{health}"
        )
        lines += [
            f"         {sign} {pod['name']} {pod['usedGPU']}"
            for sign, pod in zip(signs, card["pods"], strict=True)
        ]
    lines += [
        f"         {_UNPLACED} {pod['name']} {pod['units']}: {pod['why']}" for pod in unplaced
    ]
    if node["problem"]:
        lines.append(f"  {node['problem']}")
    return lines


def _signs(card: Mapping[str, Any], new: str) -> list[str]:
    others = [pod["name"] for pod in card["pods"] if pod["name"] != new]
    return [
        _NEW if pod["name"] == new else _FILL[others.index(pod["name"]) % len(_FILL)]
        for pod in card["pods"]
    ]


def _bar(parts: Iterable[tuple[str, int]], total: int) -> str:
    drawn, units = "", 0
    for sign, amount in parts:
        units += amount
        end = min(WIDTH, -(-WIDTH * units // total)) if total else 0
        drawn += sign * (end - len(drawn))
    return drawn + _FREE * (WIDTH - len(drawn))
