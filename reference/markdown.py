"""Writes Markdown."""

import re
import textwrap
from typing import Final

WIDTH: Final = 140


def paragraph(text: str) -> str:
    """Return a text in lines of at most WIDTH."""
    return _filled(text)


def bullet(text: str) -> str:
    """Return an entry of a list."""
    return _filled(f"* {text}", "  ")


def _filled(text: str, indent: str = "") -> str:
    words = re.sub(r"<(?=[a-z])", r"\\<", " ".join(text.split()))  # no tags
    return textwrap.fill(
        words, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
