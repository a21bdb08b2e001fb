"""Shorten text that others have chosen (pure)."""


def cut(text: str, most: int) -> str:
    """Return at most so many bytes of a text, with ``...`` if some are missing."""
    encoded = text.encode(errors="replace")
    if len(encoded) <= most:
        return text
    return encoded[: most - 3].decode(errors="ignore") + "..."
