"""Findings, and the checks that return them (pure)."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Final

from gpusharectl.doctor.checks.facts import Facts, Unknown

DOCUMENT: Final = "docs/doctor.md"


class Severity(StrEnum):
    """PROBLEM: something does not work. WARNING: it works badly, or soon will not work."""

    PROBLEM = "problem"
    WARNING = "warning"
    UNCHECKED = "not checked"


@dataclass(frozen=True, slots=True)
class FindingKind:
    """``why`` it matters, and the ``fix``, in which ``{words}`` are filled in."""

    name: str
    severity: Severity
    why: str
    fix: str

    @property
    def document(self) -> str:
        return f"{DOCUMENT}#{self.name.lower()}"

    def of(self, about: str, found: str, **words: str) -> "DoctorFinding":
        """Return what was ``found`` about a node, a pod or whatever ``about`` names."""
        return DoctorFinding(self, about, found, self.fix.format(about=about, **words))


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    kind: FindingKind
    about: str
    found: str
    fix: str


KINDS: Final[dict[str, FindingKind]] = {}


def _kind(severity: Severity, name: str, why: str, fix: str) -> FindingKind:
    """Add a kind of finding to ``KINDS``."""
    assert name not in KINDS, name  # noqa: S101 - a mistake in a check
    return KINDS.setdefault(name, FindingKind(name, severity, why, fix))


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
    """``title`` is true if ``run`` finds nothing."""

    group: str
    title: str
    run: Run


@dataclass(frozen=True, slots=True)
class CheckResult:
    check: Check
    findings: tuple[DoctorFinding, ...]


def unchecked(about: str, unknown: Unknown) -> DoctorFinding:
    return NOT_CHECKED.of(about, unknown.why)


def examine(facts: Facts, checks: Iterable[Check]) -> list[CheckResult]:
    return [CheckResult(check, tuple(check.run(facts))) for check in checks]
