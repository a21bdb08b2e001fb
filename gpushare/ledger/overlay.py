"""A mapping over another one that it never changes (pure)."""

from collections.abc import Iterator, Mapping, MutableMapping
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Layer(MutableMapping[K, V]):
    """What ``base`` has, with changes of its own; making one and each change cost no copy.

    Values are those of ``base`` until they are set here: who changes a value in place sets a copy
    first. It is of use for as long as nobody changes ``base``.
    """

    def __init__(self, base: Mapping[K, V]) -> None:
        self._base = base
        self._own: dict[K, V] = {}
        self._gone: set[K] = set()

    def __getitem__(self, key: K) -> V:
        if key in self._own:
            return self._own[key]
        if key in self._gone:
            raise KeyError(key)
        return self._base[key]

    def __setitem__(self, key: K, value: V) -> None:
        self._own[key] = value
        self._gone.discard(key)

    def __delitem__(self, key: K) -> None:
        was_there = key in self
        self._own.pop(key, None)
        if not was_there:
            raise KeyError(key)
        if key in self._base:
            self._gone.add(key)

    def __contains__(self, key: object) -> bool:
        return key in self._own or (key not in self._gone and key in self._base)

    def __iter__(self) -> Iterator[K]:
        yield from (key for key in self._base if key not in self._gone and key not in self._own)
        yield from self._own

    def __len__(self) -> int:
        added = sum(key not in self._base for key in self._own)
        return len(self._base) - len(self._gone) + added
