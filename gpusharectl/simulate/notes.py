"""Collect what is said of many objects: one text, the first names and their number (pure)."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from gpushare.text.listed import listed

NAMES: Final = 3
MAX_TEXTS: Final = 50  # different ones: texts may contain what a file says


@dataclass(slots=True)
class _Named:
    count: int = 0
    names: list[str] = field(default_factory=list)
    fix: str = ""


@dataclass(slots=True)
class Notes:
    """At most ``MAX_TEXTS`` texts; further ones are only counted."""

    _found: dict[str, _Named] = field(default_factory=dict)
    _left_out: int = 0

    def add(self, text: str, name: str = "", fix: str = "") -> None:
        """Note ``text`` of one object; ``fix`` of the first says what to do."""
        entry = self._found.get(text)
        if entry is None:
            if len(self._found) == MAX_TEXTS:
                self._left_out += 1
                return
            entry = self._found[text] = _Named(fix=fix)
        entry.count += 1
        if name and len(entry.names) < NAMES:
            entry.names.append(name)

    def lines(self) -> Iterator[str]:
        """Yield the names of the objects with each text, in the texts' order."""
        for text, entry in sorted(self._found.items()):
            names = listed(entry.names, NAMES, count=entry.count)
            said = f"{names}: {text}" if entry.names else f"{text} ({entry.count})"
            yield f"{said}. {entry.fix}" if entry.fix else said
        if self._left_out:
            yield f"and {self._left_out} more, each for a reason of its own"
