"""Which TLS handshake is next: strangers in turn by address, after those who are known.

A handshake costs a millisecond in which nobody else is answered, and whoever reaches the port can
begin one. So strangers' begin at a steady pace, of all addresses with any waiting one after the
other. An address from which a certificate of our authority was shown does not wait for its turn.
"""

from collections import Counter, deque
from typing import Final, Generic, TypeVar

PACE_SECONDS: Final = 0.01  # between two strangers' handshakes: a tenth of the program's time
STRANGER_HANDSHAKES: Final = 16  # under way from one address
STRANGERS: Final = 256  # under way from all addresses that are not known
KNOWN_HANDSHAKES: Final = 128  # from a known address; a replica opens 80 connections
KNOWN_ADDRESSES: Final = 1000

T = TypeVar("T")


class Handshakes(Generic[T]):
    """The handshakes of one listener that are under way; ``T`` is what waits for its turn."""

    def __init__(self) -> None:
        self._under_way: Counter[str] = Counter()
        self._known: dict[str, None] = {}
        self._waiting: dict[str, deque[T]] = {}
        self._strangers = 0

    def is_known(self, address: str) -> bool:
        """Whether somebody there has shown a certificate of our authority."""
        return address in self._known

    def enter(self, address: str) -> bool:
        """Count one more from ``address``; False where it has as many as it may have."""
        if address in self._known:
            if self._under_way[address] >= KNOWN_HANDSHAKES:
                return False
        elif self._under_way[address] >= STRANGER_HANDSHAKES or self._strangers >= STRANGERS:
            return False
        else:
            self._strangers += 1
        self._under_way[address] += 1
        return True

    def leave(self, address: str, *, is_trusted: bool) -> None:
        """Count one less; ``is_trusted``: it has shown a certificate of our authority."""
        was_stranger = address not in self._known
        self._under_way[address] -= 1
        self._strangers -= was_stranger
        if is_trusted:
            if was_stranger:
                self._strangers -= self._under_way[address]
            self._known.pop(address, None)
            self._known[address] = None
            while len(self._known) > KNOWN_ADDRESSES:
                oldest = next(iter(self._known))
                del self._known[oldest]
                self._strangers += self._under_way[oldest]
        if not self._under_way[address]:
            del self._under_way[address]

    def wait(self, address: str, who: T) -> None:
        """Put ``who`` behind the others of its address."""
        self._waiting.setdefault(address, deque()).append(who)

    def next(self) -> T | None:
        """Whose turn it is now, and the next time the next address's; None where nobody waits."""
        address = next(iter(self._waiting), None)
        if address is None:
            return None
        queue = self._waiting.pop(address)
        who = queue.popleft()
        if queue:
            self._waiting[address] = queue
        return who
