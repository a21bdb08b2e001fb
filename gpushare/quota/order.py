"""Order what waits for room: by priority, then by the use of namespaces or by age (pure)."""

from collections.abc import Callable
from enum import IntEnum
from heapq import heappop, heappush
from typing import Generic, Literal, NamedTuple, TypeVar

T = TypeVar("T")

OrderPolicy = Literal["fair", "fifo"]
Key = tuple[int, int, float, str, str]


class Given(IntEnum):
    """What a waiting pod or gang has of what it needs, the most first."""

    PART = 0  # some members of the gang have been placed, and it lacks others up to its minimum
    CLAIM = 1  # GPUs are claimed for it, which it can use as soon as they are free
    NOTHING = 2


class Standing(NamedTuple):
    """What a waiting pod or gang is ordered by.

    ``created`` is the creation timestamp of the pod, or of the first member. ``owner`` is
    the pod's uid, or the gang's name.
    """

    priority: int
    given: Given
    namespace: str
    created: str
    owner: str

    @property
    def age(self) -> tuple[int, int, str, str]:
        """Return what sorts by priority and age, whatever namespaces use."""
        return -self.priority, self.given, self.created, self.owner


class QueueOrder(Generic[T]):
    """Hands out entries, the first one by the current use of all namespaces.

    ``share_of`` returns which part of its quota a namespace uses. With "fair", of equal priority
    the namespace that uses the smallest part comes first; with "fifo" the oldest entry does.
    """

    def __init__(self, policy: OrderPolicy, share_of: Callable[[str], float]) -> None:
        self._policy, self._share_of = policy, share_of
        self._heap: list[tuple[Key, Standing, T]] = []

    def entries(self) -> list[tuple[Standing, T]]:
        """Return the entries that are left, in no particular order."""
        return [(standing, entry) for _, standing, entry in self._heap]

    def key(self, standing: Standing) -> Key:
        """Return what sorts an entry now."""
        share = self._share_of(standing.namespace) if self._policy == "fair" else 0.0
        priority, given, created, owner = standing.age
        return priority, given, share, created, owner

    def put(self, standing: Standing, entry: T) -> None:
        """Add an entry; no two have the same owner."""
        heappush(self._heap, (self.key(standing), standing, entry))

    def pop(self) -> tuple[Standing, T] | None:
        """Remove and return the first entry; None if there is none.

        Namespaces use more from entry to entry, so an entry may have moved back.
        """
        while self._heap:
            before, standing, entry = heappop(self._heap)
            if self._policy == "fifo" or self.key(standing) <= before or not self._heap:
                return standing, entry
            self.put(standing, entry)
        return None
