"""Numbers with what they count, as people read them (pure)."""


def counted(number: int, one: str) -> str:
    """``1 node``, ``3 nodes``: for words whose plural ends in s."""
    return f"{number:d} {one}" if number == 1 else f"{number:d} {one}s"
