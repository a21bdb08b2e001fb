"""Phrases of the sentences about Pending pods: amounts, GPUs, names, reasons (pure)."""

from collections.abc import Mapping
from typing import Final

from gpushare.answers.pending.ends import Ending
from gpushare.answers.pending.facts import Free, Pending
from gpushare.text.amounts import MIB_PER_GIB, free_gib, needed_gib
from gpushare.text.counted import counted
from gpushare.text.cut import cut, cut_name
from gpushare.text.listed import all_of

MOST_OF_MESSAGE: Final = 300
_REASONS_SAID: Final = 3
_TENTH: Final = MIB_PER_GIB // 10


def gpus(indexes: list[int]) -> str:
    """Return ``GPU 0``, or ``GPUs 0 and 1``."""
    if len(indexes) == 1:
        return f"GPU {indexes[0]}"
    return f"GPUs {all_of([str(index) for index in indexes])}"


def place_of(free: Free) -> str:
    return f"{cut_name(free.node)}, {gpus(free.cards)}"


def amount_of(found: Pending) -> str:
    return on_gpus(found, needed_gib(found.needs_mib))


def on_gpus(found: Pending, amount: str) -> str:
    if found.gpus == 1:
        return f"{amount} on one GPU"
    return f"{found.gpus} GPUs of one node with {amount} on each"


def compared(needed: int, free: int) -> tuple[str, str]:
    """Return both amounts; in exact MiB if rounding would hide or exaggerate a small difference."""
    if 0 < needed - free < _TENTH and (needed % MIB_PER_GIB or free % MIB_PER_GIB):
        return f"{needed} MiB", f"{free} MiB"
    return needed_gib(needed), free_gib(free)


def reasons(counts: Mapping[str, int]) -> str:
    """Return the most frequent reasons, with their numbers of nodes if there are several."""
    listed = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    if len(listed) == 1:
        return cut(listed[0][0], MOST_OF_MESSAGE)
    most = MOST_OF_MESSAGE // _REASONS_SAID
    said = [f"{cut(text, most)} ({counted(n, 'node')})" for text, n in listed[:_REASONS_SAID]]
    left = len(listed) - _REASONS_SAID
    return "; ".join([*said, *([counted(left, "more reason")] if left > 0 else [])])


def name_of(pod: Ending) -> str:
    return cut_name(f"{pod.namespace}/{pod.name}")


def quoted(text: str) -> str:
    text = cut(text, MOST_OF_MESSAGE)
    return text if text.endswith(".") else f"{text}."
