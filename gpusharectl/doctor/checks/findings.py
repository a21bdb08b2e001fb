"""Findings, and the checks that return them (pure)."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Final

from gpushare.text.manual import manual
from gpusharectl.doctor.facts import subjects
from gpusharectl.doctor.facts.cluster import Facts, Unknown


class Severity(StrEnum):
    """PROBLEM: something does not work. WARNING: it works badly, or soon will not work."""

    PROBLEM = "problem"
    WARNING = "warning"
    UNCHECKED = "not checked"


class Outcome(StrEnum):
    """What came of a check, the worst last."""

    OK = "ok"
    NOTHING = "nothing to check"
    UNCHECKED = "not checked"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class FindingKind:
    """``why`` it matters, and the ``fix``, in which ``{words}`` are filled in.

    ``page`` is the part of the documentation that says more; empty if none does.
    """

    name: str
    severity: Severity
    why: str
    fix: str
    page: str = ""

    @property
    def document(self) -> str:
        """Return the URL of the page, or of the list of all findings."""
        return manual(self.page or "troubleshooting.md#what-doctor-finds")

    def of(
        self, about: str, found: str, *, details: Sequence[str] = (), **words: str
    ) -> "DoctorFinding":
        """Return what was ``found`` about a node, a pod or whatever ``about`` names."""
        fix = self.fix.format(about=about, **words)
        return DoctorFinding(self, about, found, fix, tuple(details))


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    kind: FindingKind
    about: str
    found: str
    fix: str
    details: tuple[str, ...] = ()


KINDS: Final[dict[str, FindingKind]] = {}


def _kind(severity: Severity, name: str, why: str, fix: str, *, page: str = "") -> FindingKind:
    """Add a kind of finding to ``KINDS``."""
    assert name not in KINDS, name  # noqa: S101 - a mistake in a check
    return KINDS.setdefault(name, FindingKind(name, severity, why, fix, page))


problem: Final = partial(_kind, Severity.PROBLEM)
warning: Final = partial(_kind, Severity.WARNING)
NOT_CHECKED: Final = _kind(
    Severity.UNCHECKED,
    "NotChecked",
    "this could not be checked",
    "get the right, or ask somebody who has it",
)

Run = Callable[[Facts], Iterable[DoctorFinding]]


@dataclass(frozen=True, slots=True)
class Check:
    """``title`` is true if ``run`` finds nothing.

    ``nothing`` says why there is nothing to check; empty if there is something.
    """

    group: str
    title: str
    run: Run
    nothing: Callable[[Facts], str]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """``nothing`` is why there was nothing to check, else empty."""

    check: Check
    findings: tuple[DoctorFinding, ...]
    nothing: str = ""

    @property
    def outcome(self) -> Outcome:
        severities = {found.kind.severity for found in self.findings}
        for worst in (Severity.PROBLEM, Severity.WARNING, Severity.UNCHECKED):
            if worst in severities:
                return Outcome(worst.value)
        return Outcome.NOTHING if self.nothing else Outcome.OK


def unchecked(about: str, unknown: Unknown) -> DoctorFinding:
    return NOT_CHECKED.of(about, unknown.why)


def examine(facts: Facts, checks: Iterable[Check]) -> list[CheckResult]:
    return [_result(check, facts) for check in checks]


def _result(check: Check, facts: Facts) -> CheckResult:
    nothing = check.nothing(facts)
    if nothing:
        # Where gpushare is not installed, that is the reason for all others.
        return CheckResult(check, (), subjects.installation(facts) or nothing)
    return CheckResult(check, tuple(check.run(facts)))
