"""What ``gpushare doctor`` finds, and the alerts, for the page of troubleshooting."""

import re
from pathlib import Path
from typing import Any, Final

import yaml

import gpusharectl.doctor.command  # noqa: F401 - its checks fill KINDS
from gpushare.text.manual import manual
from gpusharectl.doctor.checks.findings import KINDS, FindingKind, Severity
from reference.markdown import paragraph

_PAGE: Final = "troubleshooting.md"
_RULES: Final = Path(__file__).resolve().parent.parent / "monitoring" / "rules.yaml"


def about(anchor: str, *names: str) -> str:
    """Return which alerts link to a section of the page, and why and fix of findings."""
    alerts = [
        f"`{rule['alert']}`"
        for rule in _alerts()
        if rule["annotations"]["runbook_url"] == manual(f"{_PAGE}#{anchor}")
    ]
    lines = [paragraph(f"{', '.join(alerts)}:")] if alerts else []
    return "\n\n".join([*lines, *(_entry(KINDS[name]) for name in names)])


def names() -> str:
    """Return the names of all findings, by severity, with links to what says more."""
    lines = []
    for severity in (Severity.PROBLEM, Severity.WARNING):
        kinds = sorted(
            (each for each in KINDS.values() if each.severity is severity),
            key=lambda each: each.name,
        )
        lines.append(paragraph(f"{severity.capitalize()}s: {', '.join(map(_linked, kinds))}."))
    return "\n\n".join(lines)


def _alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load(_RULES.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"] if "alert" in rule]


def _entry(kind: FindingKind) -> str:
    fix = re.sub(r"\{(\w+)\}", lambda word: word[1].upper(), kind.fix.replace("{about}", "NAME"))
    return paragraph(f"`{kind.name}`: {kind.why}. Fix: {fix}.")


def _linked(kind: FindingKind) -> str:
    page = kind.page.removeprefix(_PAGE)
    return f"[`{kind.name}`]({page})" if page else f"`{kind.name}`"
