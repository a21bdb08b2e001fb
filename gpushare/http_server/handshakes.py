"""The order of TLS handshakes: trusted addresses at once, the others in turn.

A handshake takes a millisecond in which nothing else is answered, and everything that reaches the
port can begin one. So untrusted handshakes begin at a steady pace, round-robin by address. An
address is trusted once a caller there has presented a certificate of our authority; its handshakes
do not wait.

After a start no address is trusted, not even the other replicas'. So when untrusted handshakes fill
every slot, an address with fewer of them takes a slot from the address with the most.
"""

from dataclasses import dataclass
from typing import Final, Generic, TypeVar

PACE_SECONDS: Final = 0.01  # between two untrusted handshakes: a tenth of the program's time
MAX_PER_UNTRUSTED: Final = 16  # in progress from one address, unless the listener says otherwise
MAX_UNTRUSTED: Final = 256  # in progress from all untrusted addresses
MAX_PER_TRUSTED: Final = 128  # from one trusted address; a replica opens 80 connections
MAX_TRUSTED_ADDRESSES: Final = 1000

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HandshakeAdmission(Generic[T]):
    """Whether a handshake was admitted, and which other one was dropped for it."""

    is_admitted: bool
    dropped: T | None = None


class Handshakes(Generic[T]):
    """The handshakes in progress at one listener; ``T`` is one of them, and hashable."""

    def __init__(self, max_per_untrusted: int | None = None) -> None:
        self._max_per_untrusted = (
            MAX_PER_UNTRUSTED if max_per_untrusted is None else max_per_untrusted
        )
        # By address, the oldest first; an address is in one of the first two.
        self._trusted: dict[str, dict[T, None]] = {}
        self._untrusted: dict[str, dict[T, None]] = {}
        self._queued: dict[str, dict[T, None]] = {}

    def is_trusted(self, address: str) -> bool:
        """Return whether a caller there has presented a certificate of our authority."""
        return address in self._trusted

    def admit(self, address: str, handshake: T) -> HandshakeAdmission[T]:
        """Admit a handshake unless its address has reached its limit.

        When untrusted ones fill every slot, drop the oldest one of the address with the most, if
        this address has fewer. A dropped handshake is removed and gets no turn.
        """
        if (trusted := self._trusted.get(address)) is not None:
            if len(trusted) >= MAX_PER_TRUSTED:
                return HandshakeAdmission(is_admitted=False)
            trusted[handshake] = None
            return HandshakeAdmission(is_admitted=True)
        count, dropped = len(self._untrusted.get(address, ())), None
        if count >= self._max_per_untrusted:
            return HandshakeAdmission(is_admitted=False)
        if sum(map(len, self._untrusted.values())) >= MAX_UNTRUSTED:
            most = max(self._untrusted, key=lambda each: len(self._untrusted[each]))
            if len(self._untrusted[most]) <= count:
                return HandshakeAdmission(is_admitted=False)
            dropped = next(iter(self._untrusted[most]))
            self.remove(most, dropped, is_trusted=False)
        self._untrusted.setdefault(address, {})[handshake] = None
        return HandshakeAdmission(is_admitted=True, dropped=dropped)

    def remove(self, address: str, handshake: T, *, is_trusted: bool) -> None:
        """Remove a handshake, if present; ``is_trusted``: it showed a certificate of ours."""
        if is_trusted:
            self._trust(address)
        if address in self._trusted:
            self._trusted[address].pop(handshake, None)
        else:
            _discard(self._untrusted, address, handshake)
        _discard(self._queued, address, handshake)

    def queue(self, address: str, handshake: T) -> None:
        self._queued.setdefault(address, {})[handshake] = None

    def next(self) -> T | None:
        """Return the queued handshake whose turn it is, round-robin by address, or None."""
        address = next(iter(self._queued), None)
        if address is None:
            return None
        queued = self._queued.pop(address)
        handshake = next(iter(queued))
        del queued[handshake]
        if queued:
            self._queued[address] = queued
        return handshake

    def _trust(self, address: str) -> None:
        moved = self._trusted.pop(address, None) or self._untrusted.pop(address, {})
        self._trusted[address] = moved
        if len(self._trusted) > MAX_TRUSTED_ADDRESSES:
            oldest = next(iter(self._trusted))
            if moved := self._trusted.pop(oldest):
                self._untrusted[oldest] = moved


def _discard(handshakes: dict[str, dict[T, None]], address: str, handshake: T) -> None:
    of_address = handshakes.get(address, {})
    of_address.pop(handshake, None)
    if not of_address:
        handshakes.pop(address, None)
