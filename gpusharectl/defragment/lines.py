"""Format a plan of moves for a terminal (pure)."""

from collections.abc import Iterator

from rich.text import Text

from gpushare.answers.pending.phrases import gpus
from gpushare.text.amounts import needed_gib
from gpushare.text.counted import counted
from gpusharectl.defragment.rules import Answer, MoveView, Where, title

GAVE_UP = "the search ended early: fewer moves might do, or more might be possible"
NOTHING_DONE = "Nothing was changed: --yes evicts these pods, one after the other."


def draw(answer: Answer, *, is_dry: bool) -> Iterator[Text]:
    """Yield the moves in their order, what is free then, and which pods may not move."""
    yield Text(title(answer), style=f"bold {'green' if answer.is_enough else 'red'}")
    for number, move in enumerate(answer.moves, 1):
        yield Text(f"{number:>3}. {move_line(move, answer.unit_mib)}")
    if answer.freed:
        yield Text("free after that:")
        yield from (Text(f"  {each.node}, {gpus([each.card])}") for each in answer.freed)
    if answer.places:
        yield Text("places after that:" if answer.moves else "places:")
        for place in answer.places:
            yield Text(f"  {place.node}, {gpus(place.cards)}: {counted(place.pods, 'pod')}")
    if not answer.is_enough:
        yield Text(f"{counted(answer.movable, 'pod')} may move; the others:")
        digits = max((len(str(number)) for number in answer.not_movable.values()), default=1)
        for text, number in answer.not_movable.items():
            yield Text(f"  {number:>{digits}}  {text}")
    if answer.gave_up:
        yield Text(GAVE_UP, style="dim")
    yield Text("not checked:", style="dim")
    yield from (Text(f"  {text}", style="dim") for text in answer.not_checked)
    if is_dry and answer.moves:
        yield Text(NOTHING_DONE)


def move_line(move: MoveView, unit_mib: int) -> str:
    """Return which pod leaves which GPU for which one."""
    amount = needed_gib(move.units * unit_mib)
    each = " each" if len(move.leaves.cards) > 1 else ""
    pod = f"{move.namespace}/{move.name}"
    return f"{pod}  {amount}{each}  {place(move.leaves)} -> {place(move.to)}"


def place(where: Where) -> str:
    return f"{where.node}, {gpus(where.cards)}"
