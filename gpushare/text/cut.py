"""Shorten text that others have chosen (pure)."""

from typing import Final

_MOST_OF_NAME: Final = 80  # a pod's namespace and name may have 317 characters


def cut(text: str, most: int) -> str:
    """Return at most so many bytes of a text, with ``...`` if some are missing."""
    encoded = text.encode(errors="replace")
    if len(encoded) <= most:
        return text
    return encoded[: most - 3].decode(errors="ignore") + "..."


def cut_name(name: str) -> str:
    return cut(name, _MOST_OF_NAME)
