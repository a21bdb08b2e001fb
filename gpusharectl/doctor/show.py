"""Show the doctor's results in a terminal, and return them for JSON."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, Final

from rich.console import Console
from rich.markup import escape

from gpushare.text.counted import counted
from gpushare.text.printable import printable
from gpusharectl.doctor.checks.findings import CheckResult, DoctorFinding, Outcome, Severity

FORMAT_VERSION: Final = 1
# A sign and a word: for readers without colors, and for screen readers.
_SIGNS: Final = {
    Severity.PROBLEM: ("✗", "red"),
    Severity.WARNING: ("!", "yellow"),
    Severity.UNCHECKED: ("?", "cyan"),
}
_SUMMED: Final = (Outcome.OK, Outcome.NOTHING, Outcome.UNCHECKED)
_SAME: Final = 5  # findings of one kind that are shown one by one


def _shown(text: str) -> str:
    return escape(printable(text))


def show(results: Sequence[CheckResult], console: Console) -> None:
    """Print each check in its group, its findings below it, and a summary."""
    for number, (group, members) in enumerate(groupby(results, lambda each: each.check.group)):
        # The first tells whether gpushare is installed, and needs no heading.
        if number:
            console.print(f"\n[bold]{group}[/bold]")
        _show_group(list(members), console)
    console.print(f"\n{summary(results)}", soft_wrap=True)


def _show_group(results: Sequence[CheckResult], console: Console) -> None:
    reasons = Counter(each.nothing for each in results if each.outcome is Outcome.NOTHING)
    for result in results:
        if result.outcome is Outcome.OK:
            console.print(f"  [green]✓ ok[/green]  {_shown(result.check.title)}", soft_wrap=True)
        elif result.outcome is Outcome.NOTHING and (count := reasons.pop(result.nothing, 0)):
            checks = f" ({counted(count, 'check')})" if count > 1 else ""
            text = f"{Outcome.NOTHING}: {_shown(result.nothing)}{checks}"
            console.print(f"  [dim]- {text}[/dim]", soft_wrap=True)
        for kind in dict.fromkeys(finding.kind for finding in result.findings):
            _show_kind([each for each in result.findings if each.kind == kind], console)


def _show_kind(findings: Sequence[DoctorFinding], console: Console) -> None:
    kind = findings[0].kind
    sign, color = _SIGNS[kind.severity]
    for finding in findings[:_SAME]:
        head = f"  [{color}]{sign} {kind.severity}[/{color}]  "
        text = f"[bold]{_shown(finding.about)}[/bold]: {_shown(finding.found)}"
        console.print(head + text, soft_wrap=True)
        for line in finding.details:
            console.print(f"      {_shown(line)}", soft_wrap=True)
    if len(findings) > _SAME:
        console.print(f"      ... and {len(findings) - _SAME} more of this kind (-o json has all)")
    if kind.severity is Severity.UNCHECKED:
        return
    _show_line("why", kind.why, console)
    for fix in dict.fromkeys(finding.fix for finding in findings[:_SAME]):
        _show_line("fix", fix, console)
    _show_line("see", f"{kind.name}, {kind.document}" if kind.page else kind.name, console)


def _show_line(word: str, text: str, console: Console) -> None:
    console.print(f"      [dim]{word}:[/dim] {_shown(text)}", soft_wrap=True)


def summary(results: Iterable[CheckResult]) -> str:
    """Count in one line the checks by outcome, and the findings by severity."""
    listed = list(results)
    counts = counts_of(listed)
    found = Counter(each.kind.severity for result in listed for each in result.findings)
    findings = [
        counted(found[each], each) for each in (Severity.PROBLEM, Severity.WARNING) if found[each]
    ]
    words = [f"{counts[each]} {each}" for each in _SUMMED if counts[each] or each is Outcome.OK]
    if findings:
        count = counts[Outcome.PROBLEM] + counts[Outcome.WARNING]
        words.append(f"{count} with findings ({', '.join(findings)})")
    return f"{len(listed)} checks: {', '.join(words)}."


def counts_of(results: Iterable[CheckResult]) -> Counter[Outcome]:
    """Count the checks by outcome."""
    return Counter(result.outcome for result in results)


def is_well(results: Iterable[CheckResult]) -> bool:
    """Return true if nothing was found, regardless of what could not be checked."""
    severities = {found.kind.severity for result in results for found in result.findings}
    return severities <= {Severity.UNCHECKED}


def as_builtins(results: Sequence[CheckResult]) -> dict[str, Any]:
    """Return the results for programs; names and keys stay, kinds may be added."""
    checks: list[dict[str, Any]] = [
        {
            "group": result.check.group,
            "check": result.check.title,
            "outcome": result.outcome.value,
            "nothingToCheck": result.nothing,
            "findings": [
                {
                    "kind": found.kind.name,
                    "severity": found.kind.severity.value,
                    "about": found.about,
                    "found": found.found,
                    "why": found.kind.why,
                    "cure": found.fix,
                    "document": found.kind.document,
                    "details": list(found.details),
                }
                for found in result.findings
            ],
        }
        for result in results
    ]
    counts = counts_of(results)
    return {
        "version": FORMAT_VERSION,
        "ok": is_well(results),
        "counts": {outcome.value: counts[outcome] for outcome in Outcome},
        "checks": checks,
    }
