"""Choose whom to try next, so that the number of those without success delays nobody (pure)."""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from math import inf
from operator import itemgetter
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


def in_turns(
    waiting: Iterable[T],
    namespaces_of: Callable[[T], Collection[str]],
    turn_of: Callable[[T, str], tuple[float, ...]],
) -> list[T]:
    """Return all in an order with one of each namespace before the second of any other.

    Of the firsts, of the seconds and so on, those of a lower turn come first, and then those that
    did before. What is of several namespaces counts for each, and comes with the earliest.
    """
    places, ranks = list[tuple[tuple[int, tuple[float, ...]], T]](), Counter[str]()
    for each in waiting:
        names = namespaces_of(each)
        places.append((min((ranks[name], turn_of(each, name)) for name in names), each))
        ranks.update(names)
    return [each for _, each in sorted(places, key=itemgetter(0))]


class Tries(Generic[K]):
    """When each key was last tried, and when each namespace last had a turn, in seconds.

    A key that was never tried comes before those that were; without ``new_first`` it counts as
    tried when it began to wait.
    """

    def __init__(self, *, new_first: bool = True) -> None:
        self._new_first = new_first
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
        new = -inf if self._new_first else now
        self._tried = {key: self._tried.get(key, new) for key in waiting}
        left = [key for key in waiting if key not in resting]
        left.sort(key=lambda key: self._tried[key])
        turns = in_turns(left, waiting.__getitem__, lambda _, name: (self._turns.get(name, -inf),))
        chosen = turns[:most]
        known = {name for names in waiting.values() for name in names}
        self._tried |= dict.fromkeys(chosen, now)
        self._turns = {name: at for name, at in self._turns.items() if name in known}
        self._turns |= {name: now for key in chosen for name in waiting[key]}
        return set(chosen)
