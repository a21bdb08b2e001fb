"""Sort long lists in short steps."""

from collections.abc import Generator, Sequence
from itertools import zip_longest
from typing import Any, Final, TypeVar

AT_ONCE: Final = 256

T = TypeVar("T", bound=tuple[Any, ...])


def sorted_in_steps(found: Sequence[T]) -> Generator[None, None, list[T]]:
    """Return tuples in rising order: sort parts, and then merge two parts at a time."""
    parts = []
    for first in range(0, len(found), AT_ONCE):
        yield
        parts.append(sorted(found[first : first + AT_ONCE]))
    while len(parts) > 1:
        pairs = list(zip_longest(parts[::2], parts[1::2], fillvalue=()))
        parts = []
        for one, two in pairs:
            yield
            parts.append(sorted((*one, *two)))  # takes about one comparison an element
    return parts[0] if parts else []
