"""Make text from others safe for a terminal (pure)."""

import re
import unicodedata
from collections.abc import Callable
from typing import Any, Final

import msgspec

# Control characters, marks that change the reading order, surrogates.
_UNSAFE: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
_NOT_PLAIN: Final = re.compile("[^\t\n -~]")


def printable(text: str) -> str:
    """Replace what a terminal would obey; the length stays.

    Messages and annotations may contain anything, also escape sequences.
    """
    if text.isprintable():
        return text
    return _NOT_PLAIN.sub(lambda found: _REPLACEMENT if _is_unsafe(found[0]) else found[0], text)


def printable_json(found: Any, enc_hook: Callable[[Any], Any] | None = None) -> bytes:
    """Encode as JSON in one line, with escapes for what a terminal would obey.

    JSON itself requires them only for the first 32 control characters, but terminals obey U+0080 to
    U+009F too. Readers of JSON get the same text. ``enc_hook`` is msgspec's.
    """
    encoded = msgspec.json.encode(found, enc_hook=enc_hook)
    text = encoded.decode()
    return encoded if text.isprintable() else _NOT_PLAIN.sub(_escaped, text).encode()


def _is_unsafe(character: str) -> bool:
    return unicodedata.category(character) in _UNSAFE


def _escaped(found: re.Match[str]) -> str:
    character = found[0]
    if not _is_unsafe(character):
        return character
    units = character.encode("utf-16-be").hex()  # JSON writes one above U+FFFF as two
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
