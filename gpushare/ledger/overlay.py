"""A mapping with changes on top of another mapping that stays as it is (pure)."""

from collections.abc import Iterator, Mapping, MutableMapping
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Overlay(MutableMapping[K, V]):
    """A view of ``base`` with its own changes; creating and changing it copies nothing.

    Values are shared with ``base`` until they are set here: set a copy before you change a value in
    place. The overlay is valid until ``base`` changes.
    """

    def __init__(self, base: Mapping[K, V]) -> None:
        self._base = base
        self._own: dict[K, V] = {}
        self._deleted: set[K] = set()

    def __getitem__(self, key: K) -> V:
        if key in self._own:
            return self._own[key]
        if key in self._deleted:
            raise KeyError(key)
        return self._base[key]

    def __setitem__(self, key: K, value: V) -> None:
        self._own[key] = value
        self._deleted.discard(key)

    def __delitem__(self, key: K) -> None:
        was_there = key in self
        self._own.pop(key, None)
        if not was_there:
            raise KeyError(key)
        if key in self._base:
            self._deleted.add(key)

    def __contains__(self, key: object) -> bool:
        return key in self._own or (key not in self._deleted and key in self._base)

    def __iter__(self) -> Iterator[K]:
        yield from (key for key in self._base if key not in self._deleted and key not in self._own)
        yield from self._own

    def __len__(self) -> int:
        added = sum(key not in self._base for key in self._own)
        return len(self._base) - len(self._deleted) + added

    def owns(self, key: K) -> bool:
        """Return whether the value of ``key`` was set here, and so may be changed in place."""
        return key in self._own


def is_own(mapping: Mapping[K, V], key: K) -> bool:
    """Return whether the value of ``key`` may be changed in place: no base shares it."""
    return not isinstance(mapping, Overlay) or mapping.owns(key)
