"""Which TLS handshake is next: strangers in turn by address, after those who are known.

A handshake costs a millisecond in which nobody else is answered, and whoever reaches the port can
begin one. So strangers' begin at a steady pace, of all addresses with any waiting one after the
other. An address from which a certificate of our authority was shown does not wait for its turn.

After a start nobody is known, the other replicas neither. So strangers who take every place must
not keep an address with fewer of them out: theirs go for its.
"""

from dataclasses import dataclass
from typing import Final, Generic, TypeVar

PACE_SECONDS: Final = 0.01  # between two strangers' handshakes: a tenth of the program's time
STRANGER_HANDSHAKES: Final = 16  # under way from one address
STRANGERS: Final = 256  # under way from all addresses that are not known
KNOWN_HANDSHAKES: Final = 128  # from a known address; a replica opens 80 connections
KNOWN_ADDRESSES: Final = 1000

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Entry(Generic[T]):
    """Whether somebody has come in, and who was dropped for it."""

    is_in: bool
    dropped: T | None = None


class Handshakes(Generic[T]):
    """The handshakes of one listener that are under way; ``T`` is one of them, and hashable."""

    def __init__(self) -> None:
        # By address, the longest there first; an address is in one of the first two.
        self._known: dict[str, dict[T, None]] = {}
        self._strangers: dict[str, dict[T, None]] = {}
        self._waiting: dict[str, dict[T, None]] = {}

    def is_known(self, address: str) -> bool:
        """Whether somebody there has shown a certificate of our authority."""
        return address in self._known

    def enter(self, address: str, who: T) -> Entry[T]:
        """Let ``who`` in unless its address has as many under way as it may have.

        Where strangers have every place, the oldest one of the address with the most is dropped
        for a stranger whose address has fewer: it has left, and has no turn any more.
        """
        if (known := self._known.get(address)) is not None:
            if len(known) >= KNOWN_HANDSHAKES:
                return Entry(is_in=False)
            known[who] = None
            return Entry(is_in=True)
        count, dropped = len(self._strangers.get(address, ())), None
        if count >= STRANGER_HANDSHAKES:
            return Entry(is_in=False)
        if sum(map(len, self._strangers.values())) >= STRANGERS:
            most = max(self._strangers, key=lambda each: len(self._strangers[each]))
            if len(self._strangers[most]) <= count:
                return Entry(is_in=False)
            dropped = next(iter(self._strangers[most]))
            self.leave(most, dropped, is_trusted=False)
        self._strangers.setdefault(address, {})[who] = None
        return Entry(is_in=True, dropped=dropped)

    def leave(self, address: str, who: T, *, is_trusted: bool) -> None:
        """Take ``who`` out if it is in; ``is_trusted``: it has shown a certificate of ours."""
        if is_trusted:
            self._trust(address)
        if address in self._known:
            self._known[address].pop(who, None)
        else:
            _take(self._strangers, address, who)
        _take(self._waiting, address, who)

    def wait(self, address: str, who: T) -> None:
        """Put ``who`` behind the others of its address."""
        self._waiting.setdefault(address, {})[who] = None

    def next(self) -> T | None:
        """Whose turn it is now, and the next time the next address's; None where nobody waits."""
        address = next(iter(self._waiting), None)
        if address is None:
            return None
        queue = self._waiting.pop(address)
        who = next(iter(queue))
        del queue[who]
        if queue:
            self._waiting[address] = queue
        return who

    def _trust(self, address: str) -> None:
        inside = self._known.pop(address, None) or self._strangers.pop(address, {})
        self._known[address] = inside
        if len(self._known) > KNOWN_ADDRESSES:
            oldest = next(iter(self._known))
            if inside := self._known.pop(oldest):
                self._strangers[oldest] = inside


def _take(places: dict[str, dict[T, None]], address: str, who: T) -> None:
    inside = places.get(address, {})
    inside.pop(who, None)
    if not inside:
        places.pop(address, None)
