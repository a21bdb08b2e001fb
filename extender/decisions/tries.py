"""Choose whom to try next, so that the number of those without success delays nobody (pure)."""

from collections import Counter
from collections.abc import Collection, Hashable, Mapping
from math import inf
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Tries(Generic[K]):
    """When each key was last tried, and when each namespace last had a turn, in seconds."""

    def __init__(self) -> None:
        self._tried: dict[K, float] = {}
        self._turns: dict[str, float] = {}

    def choose(
        self,
        waiting: Mapping[K, Collection[str]],
        most: int,
        now: float,
        resting: Collection[K] = (),
    ) -> set[K]:
        """Return at most ``most`` keys that are not ``resting``, and note that they are tried now.

        ``waiting`` has the namespaces of each key, the most urgent key first. One key of each
        namespace comes before the second of any other, and the last try that is longest ago first.
        """
        left = [key for key in waiting if key not in resting]
        left.sort(key=lambda key: self._tried.get(key, -inf))
        places, ranks = dict[K, tuple[int, float]](), Counter[str]()
        for key in left:
            names = waiting[key]
            places[key] = min((ranks[name], self._turns.get(name, -inf)) for name in names)
            ranks.update(names)
        chosen = sorted(left, key=places.__getitem__)[:most]
        known = {name for names in waiting.values() for name in names}
        self._tried = {key: at for key, at in self._tried.items() if key in waiting}
        self._tried |= dict.fromkeys(chosen, now)
        self._turns = {name: at for name, at in self._turns.items() if name in known}
        self._turns |= {name: now for key in chosen for name in waiting[key]}
        return set(chosen)
