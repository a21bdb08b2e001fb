"""Read metrics in Prometheus' text format (pure).

https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from gpushare.errors import RecordError

_SAMPLE: Final = re.compile(
    r"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(?P<labels>.*)\})?"
    r"[ \t]+(?P<value>\S+)(?:[ \t]+-?\d+)?",
    re.ASCII,
)
_LABEL: Final = re.compile(
    r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)', re.ASCII
)
_ESCAPED: Final = re.compile(r"\\(.)")
_UNESCAPED: Final = {"n": "\n"}


@dataclass(frozen=True, slots=True)
class Sample:
    name: str
    labels: Mapping[str, str]
    value: float


class Samples:
    """All samples of a page, by the name of the metric."""

    def __init__(self, text: str = "") -> None:
        """Raises RecordError for a line in another format."""
        self._by_name: dict[str, list[Sample]] = {}
        for line in text.split("\n"):
            stripped = line.strip()
            if stripped and not stripped.startswith("#"):
                sample = _read(stripped)
                self._by_name.setdefault(sample.name, []).append(sample)

    def of(self, name: str) -> list[Sample]:
        return self._by_name.get(name, [])

    def total(self, name: str) -> float:
        """Return the sum over all labels; 0 if the page does not have the metric."""
        return sum(sample.value for sample in self.of(name))


def _read(line: str) -> Sample:
    match = _SAMPLE.fullmatch(line)
    if match is None:
        raise RecordError(f"{line[:80]!r} is not Prometheus' text format")
    try:
        value = float(match["value"])  # NaN, +Inf and -Inf are written as Python reads them
        labels = dict(_labels(match["labels"] or ""))
    except ValueError as err:
        raise RecordError(f"{line[:80]!r} is not Prometheus' text format: {err}") from err
    return Sample(match["name"], labels, value)


def _labels(text: str) -> Iterator[tuple[str, str]]:
    place = 0
    while place < len(text):
        match = _LABEL.match(text, place)
        if match is None:
            raise ValueError(f"labels {text[place : place + 40]!r} cannot be read")
        yield match[1], _ESCAPED.sub(lambda each: _UNESCAPED.get(each[1], each[1]), match[2])
        place = match.end()
