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


def about(*names: str) -> str:
    """Return why and fix of findings."""
    return "\n\n".join(_entry(KINDS[name]) for name in names)


def names() -> str:
    """Return the names of findings, by severity, and of alerts, with links to what says more."""
    lines = []
    for severity in (Severity.PROBLEM, Severity.WARNING):
        kinds = sorted(
            (each for each in KINDS.values() if each.severity is severity),
            key=lambda each: each.name,
        )
        found = (_linked(each.name, each.page) for each in kinds)
        lines.append(paragraph(f"{severity.capitalize()}s: {', '.join(found)}."))
    alerts = (
        _linked(each["alert"], each["annotations"]["runbook_url"].removeprefix(manual("")))
        for each in _alerts()
    )
    lines.append(paragraph(f"Alerts: {', '.join(alerts)}."))
    return "\n\n".join(lines)


def _alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load(_RULES.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"] if "alert" in rule]


def _entry(kind: FindingKind) -> str:
    fix = re.sub(r"\{(\w+)\}", lambda word: word[1].upper(), kind.fix.replace("{about}", "NAME"))
    return paragraph(f"`{kind.name}`: {kind.why}. Fix: {fix}.")


def _linked(name: str, page: str) -> str:
    target = page.removeprefix(_PAGE)
    return f"[`{name}`]({target})" if target else f"`{name}`"
