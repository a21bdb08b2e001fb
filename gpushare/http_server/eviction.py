"""Chooses the connection that a full listener closes for a new one."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OpenConnection:
    """A connection of one address; an idle one has no request in progress."""

    address: str
    is_idle: bool
    close: Callable[[], object]


def choose(address: str, connections: Sequence[OpenConnection]) -> OpenConnection | None:
    """Return what to close for a connection of ``address``, or None: reject the new one.

    It is the first idle connection of the address with the most connections, if ``address`` has
    fewer. Addresses without an idle connection do not count.
    """
    counts = Counter(each.address for each in connections)
    idle = [each for each in connections if each.is_idle]
    found = max(idle, key=lambda each: counts[each.address], default=None)
    return found if found is not None and counts[found.address] > counts[address] else None
