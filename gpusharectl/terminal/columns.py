"""Lay out rows of cells in columns, the last one as wide as it is (pure)."""

from collections.abc import Collection, Iterator, Mapping, Sequence

from rich.text import Text

Cells = Mapping[str, str | int]  # by the heads of their columns; all rows have the same ones


def columns(
    rows: Sequence[Cells], styles: Sequence[Mapping[str, str]], numbers: Collection[str]
) -> Iterator[Text]:
    """Yield a line of heads and one for each row; nothing without rows.

    ``styles`` are those of some cells of each row, by head. The cells of ``numbers`` end at the
    right.
    """
    if not rows:
        return
    heads = list(rows[0])
    cells = [heads, *([str(row[head]) for head in heads] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    bold = dict.fromkeys(heads[:-1], "bold")
    for row, style in zip(cells, (bold, *styles), strict=True):
        line = Text()
        for head, cell, width in zip(heads[:-1], row, widths, strict=False):
            padded = f"{cell:>{width}}" if head in numbers else f"{cell:<{width}}"
            line.append(f"{padded}  ", style=style.get(head, ""))
        yield line.append(row[-1], style=style.get(heads[-1], ""))
