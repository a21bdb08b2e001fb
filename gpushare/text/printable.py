"""Make text from others safe for a terminal (pure)."""

import re
import unicodedata
from typing import Final

# Control characters, marks that change the reading order, surrogates.
_UNSAFE: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
# What ``is_unsafe`` has to be asked about.
NOT_PLAIN: Final = re.compile("[^\t\n -~]")


def printable(text: str) -> str:
    """Replace what a terminal would obey; the length stays.

    Messages and annotations may contain anything, also escape sequences.
    """
    if text.isprintable():
        return text
    return NOT_PLAIN.sub(lambda found: _REPLACEMENT if is_unsafe(found[0]) else found[0], text)


def is_unsafe(character: str) -> bool:
    """Return whether a terminal can obey the character, also a newline or a tab."""
    return unicodedata.category(character) in _UNSAFE
