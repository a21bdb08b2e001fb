"""Make text from others safe for a terminal (pure)."""

import unicodedata
from typing import Final

# Control characters, marks that change the reading order, surrogates.
_UNSAFE: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"


def printable(text: str) -> str:
    """Replace what a terminal would obey; the length stays.

    Messages and annotations may contain anything, also escape sequences.
    """
    if text.isprintable():
        return text
    return "".join(
        _REPLACEMENT if each not in "\n\t" and unicodedata.category(each) in _UNSAFE else each
        for each in text
    )
