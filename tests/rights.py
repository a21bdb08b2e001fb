"""What the accounts may write, in rules of RBAC and in docs/security.md."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_READS = {"get", "list", "watch"}


def writes(rules: Iterable[Mapping[str, Any]]) -> dict[str, set[str]]:
    """Return the verbs that change something, by resource."""
    found: dict[str, set[str]] = {}
    for rule in rules:
        for resource in rule["resources"]:
            if verbs := set(rule["verbs"]) - _READS:
                found.setdefault(resource, set()).update(verbs)
    return found


def documented(account: str, *places: str) -> dict[str, set[str]]:
    """Return the same of the account's rows in docs/security.md that name one of the places."""
    text = (ROOT / "docs/security.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w-]+)` \| ([^|]+) \| ([^|]+) \|$", text, re.MULTILINE)
    found: dict[str, set[str]] = {}
    for name, where, cell in rows:
        if name == account and any(each in where for each in places):
            for resource, verbs in re.findall(r"`([a-z/]+)` ([a-z, ]+)", cell):
                found.setdefault(resource, set()).update(verbs.split(", "))
    return found
