"""Writes Markdown."""

import re
import textwrap
from collections.abc import Iterable
from typing import Final

WIDTH: Final = 140


def paragraph(text: str) -> str:
    """Return a text in lines of at most WIDTH."""
    return textwrap.fill(_plain(text), WIDTH, break_long_words=False, break_on_hyphens=False)


def table(*rows: tuple[str, ...]) -> str:
    """Return a table, the first row of which is its head."""
    head, *rest = rows
    return "\n".join([_row(head), _row(["---"] * len(head)), *map(_row, rest)])


def _row(cells: Iterable[str]) -> str:
    return f"|{'|'.join(_plain(each).replace('|', chr(92) + '|') for each in cells)}|"


def _plain(text: str) -> str:
    return re.sub(r"<(?=[a-z])", r"\\<", " ".join(text.split()))  # no tags
