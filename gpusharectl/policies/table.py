"""Draw a table that compares policies (pure)."""

from collections.abc import Iterable, Iterator, Sequence

from rich.text import Text

from gpushare.text.amounts import free_gib, needed_gib
from gpushare.text.counted import counted
from gpusharectl.policies.kinds import Kind
from gpusharectl.policies.left import Left, TooLittle

Row = tuple[str, Sequence[object]]  # the head of a line, and a cell for each policy or none


def table(policies: Sequence[str], rows: Iterable[Row]) -> Iterator[Text]:
    """Yield a line for each row, under the names of the policies."""
    lines = [("", policies), *rows]
    head = max(len(text) for text, _ in lines)
    widths = [max(len(str(cell)) for cell in column) for column in _columns(lines)]
    for place, (text, cells) in enumerate(lines):
        padded = (f"  {cell!s:>{width}}" for cell, width in zip(cells, widths, strict=False))
        line = f"{text:<{head}}{''.join(padded)}".rstrip()
        yield Text(line, style="" if place else "bold")


def rows_of(lefts: Sequence[Left], kinds: Sequence[Kind], unit_mib: int) -> Iterator[Row]:
    """Yield what each policy leaves; ``lefts`` are in the order of the policies."""
    used = [f"{100 * left.used / left.units:.1f}%" if left.units else "-" for left in lefts]
    yield "GPU memory used", used
    yield "GPUs entirely free", [left.free_cards for left in lefts]
    if kinds:
        yield (
            "free, but too little for any pod",
            [free_gib(left.unusable * unit_mib) for left in lefts],
        )
        yield "GPUs with free memory, but too little for", ()
    for place, kind in enumerate(kinds):
        cells = [_cell(left.too_little[place], unit_mib) for left in lefts]
        yield f"  {named(kind, unit_mib)}", cells


def largest_difference(
    policies: Sequence[str], lefts: Sequence[Left], kinds: Sequence[Kind], unit_mib: int
) -> str:
    """Say in a sentence for which kind the policies differ most; empty if they do not differ."""
    counts = [[left.too_little[place].gpus for left in lefts] for place in range(len(kinds))]
    place = max(range(len(kinds)), key=lambda at: max(counts[at]) - min(counts[at]), default=None)
    if place is None or len({*counts[place]}) == 1:
        return ""
    (first, most), *others = zip(policies, counts[place], strict=True)
    kind = named(kinds[place], unit_mib)
    rest = "".join(f", {policy} {number}" for policy, number in others)
    return f"{first} leaves {counted(most, 'GPU')} with too little free memory for {kind}{rest}."


def named(kind: Kind, unit_mib: int) -> str:
    """Return for example ``ml/whisper and 2 others (8 GiB)``."""
    name = kind.name if kind.namespace == "default" else f"{kind.namespace}/{kind.name}"
    more = f" and {counted(kind.others, 'other')}" if kind.others else ""
    amount = needed_gib(kind.units_per_card * unit_mib)
    each = f"{kind.cards} GPUs of {amount}" if kind.cards > 1 else amount
    return f"{name}{more} ({each})"


def _cell(found: TooLittle, unit_mib: int) -> str:
    return f"{found.gpus} ({free_gib(found.units * unit_mib)})" if found.gpus else "0"


def _columns(lines: Sequence[Row]) -> Iterator[tuple[object, ...]]:
    return zip(*(cells for _, cells in lines if cells), strict=True)
