"""Encode JSON that is safe for a terminal (pure)."""

import re
from collections.abc import Callable
from typing import Any

import msgspec

from gpushare.text.printable import NOT_PLAIN, is_unsafe


def printable_json(found: Any, enc_hook: Callable[[Any], Any] | None = None) -> bytes:
    """Encode as JSON in one line, with escapes for what a terminal would obey.

    JSON itself requires them only for the first 32 control characters, but terminals obey U+0080 to
    U+009F too. Readers of JSON get the same text. ``enc_hook`` is msgspec's.
    """
    encoded = msgspec.json.encode(found, enc_hook=enc_hook)
    text = encoded.decode()
    return encoded if text.isprintable() else NOT_PLAIN.sub(_escaped, text).encode()


def _escaped(found: re.Match[str]) -> str:
    character = found[0]
    if not is_unsafe(character):
        return character
    units = character.encode("utf-16-be").hex()  # JSON writes one above U+FFFF as two
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
