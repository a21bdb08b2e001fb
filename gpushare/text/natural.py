"""Sort names with numbers as people count: gpu-2 before gpu-10 (pure)."""

import re
from typing import Final

_NUMBER: Final = re.compile(r"0*(\d+)", re.ASCII)


def natural(name: str) -> tuple[list[tuple[int, str]], str]:
    """Return a key by which names sort; different names have different keys."""
    parts = enumerate(_NUMBER.split(name))  # texts and numbers in turn
    return [(len(part) if place % 2 else 0, part) for place, part in parts], name
