"""What others have written, made fit for a terminal (pure)."""

import unicodedata
from typing import Final

# Controls, which a terminal obeys; marks that turn the order of what is read; halves of signs.
_OBEYED: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_INSTEAD: Final = "\N{REPLACEMENT CHARACTER}"


def printable(text: str) -> str:
    """The text, as long as it was, without what a terminal would obey.

    Messages and annotations are whatever their writers like, an escape sequence too.
    """
    if text.isprintable():
        return text
    return "".join(
        _INSTEAD if each not in "\n\t" and unicodedata.category(each) in _OBEYED else each
        for each in text
    )
