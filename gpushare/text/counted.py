"""Write numbers with their nouns (pure)."""


def counted(number: int, one: str) -> str:
    """Return ``1 node`` or ``3 nodes``; the plural of ``one`` must end in s."""
    return f"{number:d} {one}" if number == 1 else f"{number:d} {one}s"
