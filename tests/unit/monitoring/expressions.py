"""Check the metrics and labels that our PromQL names."""

import re
from collections.abc import Iterator
from pathlib import Path

import yaml

from tests.metrics_table import Row

FOLDER = Path(__file__).parents[3] / "monitoring"

# What Prometheus knows of the target, as docs/monitoring.md asks for it.
OF_THE_TARGET = {"instance", "node"}
RULES = [
    rule
    for group in yaml.safe_load((FOLDER / "rules.yaml").read_text())["groups"]
    for rule in group["rules"]
]
RECORDED = {rule["record"] for rule in RULES if "record" in rule}
_SUFFIXES = ("_bucket", "_sum", "_count")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_SELECTOR = re.compile(r"(?<!:)\b(gpushare_\w+)\b(?!:)(?:\s*\{([^}]*)\})?")
_NAME = re.compile(r"\b(\w+):gpushare_\w+:\w+")
_GROUPS = re.compile(r"\b(?:by|on|ignoring|without)\s*\(([^)]*)\)")


def problems(expression: str, table: dict[str, Row]) -> Iterator[str]:
    """Yield metrics that are neither in the table nor recorded, and labels that no metric has."""
    plain = _QUOTED.sub('""', expression)
    known: set[str] = set()
    for found in _NAME.finditer(plain):
        known.add(found[1])  # by convention, a recorded name begins with its label
        if found[0] not in RECORDED:
            yield f"nothing records {found[0]}"
    for name, matchers in _SELECTOR.findall(plain):
        base = next((name.removesuffix(each) for each in _SUFFIXES if name.endswith(each)), name)
        row = table.get(name) or table.get(base)
        if row is None:
            yield f"no metric {name}"
            continue
        labels = row.labels | OF_THE_TARGET | ({"le"} if row.type == "histogram" else set())
        known |= labels
        yield from (
            f"{name} has no label {label}"
            for label in re.findall(r"(\w+)\s*[!=]", matchers)
            if label not in labels
        )
    for group in _GROUPS.findall(plain):
        yield from (
            f"no metric of {expression} has a label {label}"
            for label in group.replace(",", " ").split()
            if label not in known
        )
