"""Show the doctor's results in a terminal, and return them for JSON."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

from rich.console import Console
from rich.markup import escape

from gpushare.text.counted import counted
from gpusharectl.doctor.checks.findings import CheckResult, DoctorFinding, Severity
from gpusharectl.terminal.printable import printable

FORMAT_VERSION: Final = 1
# A sign and a word: for readers without colors, and for screen readers.
_SIGNS: Final = {
    Severity.PROBLEM: ("✗", "red"),
    Severity.WARNING: ("!", "yellow"),
    Severity.UNCHECKED: ("?", "cyan"),
}
_SAME: Final = 5  # findings of one kind that are shown one by one


def _shown(text: str) -> str:
    return escape(printable(text))


def show(results: Sequence[CheckResult], console: Console) -> None:
    """Print each check in its group, its findings below it, and a summary."""
    group = ""
    for result in results:
        if result.check.group != group:
            group = result.check.group
            console.print(f"\n[bold]{group}[/bold]")
        if not result.findings:
            console.print(f"  [green]✓ ok[/green]  {_shown(result.check.title)}")
            continue
        for kind in dict.fromkeys(finding.kind for finding in result.findings):
            _show_kind([each for each in result.findings if each.kind == kind], console)
    console.print(f"\n{summary(results)}")


def _show_kind(findings: Sequence[DoctorFinding], console: Console) -> None:
    kind = findings[0].kind
    sign, color = _SIGNS[kind.severity]
    for finding in findings[:_SAME]:
        head = f"  [{color}]{sign} {kind.severity}[/{color}]  "
        text = f"[bold]{_shown(finding.about)}[/bold]: {_shown(finding.found)}"
        console.print(head + text, soft_wrap=True)
    if len(findings) > _SAME:
        console.print(f"      ... and {len(findings) - _SAME} more of this kind (-o json has all)")
    if kind.severity is Severity.UNCHECKED:
        return
    _show_line("why", kind.why, console)
    for fix in dict.fromkeys(finding.fix for finding in findings[:_SAME]):
        _show_line("fix", fix, console)
    _show_line("see", f"{kind.name}, {kind.document}", console)


def _show_line(word: str, text: str, console: Console) -> None:
    console.print(f"      [dim]{word}:[/dim] {_shown(text)}", soft_wrap=True)


def summary(results: Iterable[CheckResult]) -> str:
    """Count in one line the checks without findings, and the findings by severity."""
    listed = list(results)
    found = Counter(each.kind.severity for result in listed for each in result.findings)
    passed = sum(not result.findings for result in listed)
    words = [f"{passed} of {len(listed)} checks found nothing"]
    words += [
        counted(found[each], each)
        for each in _SIGNS
        if each is not Severity.UNCHECKED and found[each]
    ]
    if found[Severity.UNCHECKED]:
        words.append(f"{counted(found[Severity.UNCHECKED], 'thing')} not checked")
    return ", ".join(words) + "."


def is_well(results: Iterable[CheckResult]) -> bool:
    """Return true if nothing was found, regardless of what could not be checked."""
    severities = {found.kind.severity for result in results for found in result.findings}
    return severities <= {Severity.UNCHECKED}


def as_builtins(results: Sequence[CheckResult]) -> dict[str, Any]:
    """Return what docs/doctor.md describes; names and keys stay, kinds may be added."""
    checks: list[dict[str, Any]] = [
        {
            "group": result.check.group,
            "check": result.check.title,
            "findings": [
                {
                    "kind": found.kind.name,
                    "severity": found.kind.severity.value,
                    "about": found.about,
                    "found": found.found,
                    "why": found.kind.why,
                    "cure": found.fix,
                    "document": found.kind.document,
                }
                for found in result.findings
            ],
        }
        for result in results
    ]
    return {"version": FORMAT_VERSION, "ok": is_well(results), "checks": checks}
