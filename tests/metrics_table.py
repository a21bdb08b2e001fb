"""Compare a page of /metrics with docs/reference/metrics.md."""

import re
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

DOCUMENT = Path(__file__).parents[1] / "docs" / "reference" / "metrics.md"


@dataclass(frozen=True)
class Row:
    type: str
    labels: frozenset[str]


def rows(heading: str) -> dict[str, Row]:
    """Return the rows of one program, by the name of the metric."""
    section = DOCUMENT.read_text().split(f"\n### {heading}\n")[1].split("\n### ")[0]
    found = re.findall(
        r"^\|`(gpushare_\w+)(?:\{([\w,]+)\})?`(?: \((histogram)\))?\|", section, re.MULTILINE
    )
    return {
        name: Row(
            "counter" if name.endswith("_total") else marked or "gauge",
            frozenset(labels.split(",")) - {""},
        )
        for name, labels, marked in found
    }


def table() -> dict[str, Row]:
    return rows("Extender") | rows("Device plugin")


def families(page: str) -> dict[str, Row]:
    """Return our metrics on a page; a family without series has no labels."""
    found = {}
    for family in text_string_to_metric_families(page):
        if family.name.startswith("gpushare_"):
            name = family.name + ("_total" if family.type == "counter" else "")
            labels = {label for sample in family.samples for label in sample.labels} - {"le"}
            found[name] = Row(family.type, frozenset(labels))
    return found


def differences(page: str, wanted: dict[str, Row]) -> list[str]:
    """Return how a page differs from the rows of its program."""
    shown = families(page)
    wrong = [f"{name} is not in the document" for name in shown.keys() - wanted.keys()]
    wrong += [f"{name} is not shown" for name in wanted.keys() - shown.keys()]
    for name in shown.keys() & wanted.keys():
        is_empty = not shown[name].labels
        told = Row(wanted[name].type, frozenset()) if is_empty else wanted[name]
        if shown[name] != told:
            wrong.append(f"{name} is {shown[name]}, in the document {told}")
    return sorted(wrong)
