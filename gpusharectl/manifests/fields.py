"""Read the fields of an object that a user has written, with the place of each (pure)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gpushare.errors import SettingsError
from gpusharectl.manifests.kubernetes_keys import Path

MOST_PODS: Final = 100_000  # of one workload


class Misplaced(SettingsError):
    """A field is missing or has a wrong value; ``text`` says what to write at ``place``."""

    def __init__(self, place: Path, text: str) -> None:
        super().__init__(text)
        self.place, self.text = place, text


@dataclass(frozen=True, slots=True)
class Field:
    """A value and its place in the object; null and absent are the same, as in Kubernetes."""

    value: Any
    place: Path = ()

    def at(self, *keys: str) -> "Field":
        """Return the field below; its value is None if one of the keys is missing.

        Raises Misplaced if the parent of one of them is no mapping.
        """
        found = self
        for key in keys:
            found = Field(found.mapping().get(key), (*found.place, key))
        return found

    def mapping(self) -> Mapping[str, Any]:
        """Return the mapping, empty if absent. Raises Misplaced for another type."""
        if self.value is None:
            return {}
        if not isinstance(self.value, dict):
            raise Misplaced(self.place, f"expected a mapping, found {self.value!r:.40}")
        return self.value

    def fields(self) -> Iterator[tuple[str, "Field"]]:
        """Yield each field of a mapping with its key. Raises Misplaced for another type."""
        for key in self.mapping():
            yield str(key), Field(self.value[key], (*self.place, key))

    def items(self) -> Iterator["Field"]:
        """Yield each item of a list, nothing if absent. Raises Misplaced for another type."""
        if self.value is not None and not isinstance(self.value, list):
            raise Misplaced(self.place, f"expected a list, found {self.value!r:.40}")
        for number, each in enumerate(self.value or ()):
            yield Field(each, (*self.place, number))

    def text(self, otherwise: str | None = None) -> str:
        """Return the text, or ``otherwise`` if absent. Raises Misplaced without either."""
        found = otherwise if self.value is None else self.value
        if not isinstance(found, str) or (not found and otherwise is None):
            raise Misplaced(self.place, f"expected a text, found {self.value!r:.40}")
        return found

    def number(self, otherwise: int, most: int = MOST_PODS) -> int:
        """Return a number of pods, or ``otherwise`` if absent. Raises Misplaced."""
        found = otherwise if self.value is None else self.value
        if type(found) is not int or not 0 <= found <= most:
            text = f"{found!r:.40}: write a number of pods from 0 to {most}"
            raise Misplaced(self.place, text)
        return found

    def is_true(self) -> bool:
        return self.value is True
