"""What a finding is, and how a check says that it could not look (pure)."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gpusharectl.doctor.checks.facts import Facts, Unknown

DOCUMENT: Final = "docs/doctor.md"


class Severity(StrEnum):
    """PROBLEM: something does not work. WARNING: it will not, or not well. UNCHECKED: not known."""

    PROBLEM = "problem"
    WARNING = "warning"
    UNCHECKED = "not checked"


@dataclass(frozen=True, slots=True)
class Kind:
    """``why`` it matters, and the ``cure``, in which ``{words}`` are filled in."""

    name: str
    severity: Severity
    why: str
    cure: str

    @property
    def document(self) -> str:
        return f"{DOCUMENT}#{self.name.lower()}"

    def of(self, about: str, found: str, **words: str) -> "Finding":
        """What was ``found`` about a node, a pod or whatever ``about`` names."""
        return Finding(self, about, found, self.cure.format(about=about, **words))


@dataclass(frozen=True, slots=True)
class Finding:
    kind: Kind
    about: str
    found: str
    cure: str


NOT_CHECKED: Final = Kind(
    "NotChecked",
    Severity.UNCHECKED,
    "whether this is right is not known",
    "have that granted, or let somebody look who has it",
)

KINDS: Final[dict[str, Kind]] = {NOT_CHECKED.name: NOT_CHECKED}


def problem(name: str, why: str, cure: str) -> Kind:
    """A kind of finding about what does not work; ``KINDS`` has it from now on."""
    return _add(Kind(name, Severity.PROBLEM, why, cure))


def warning(name: str, why: str, cure: str) -> Kind:
    """The same, about what will not work, or not well."""
    return _add(Kind(name, Severity.WARNING, why, cure))


def _add(kind: Kind) -> Kind:
    assert kind.name not in KINDS, kind.name  # noqa: S101 - a slip of whoever writes a check
    KINDS[kind.name] = kind
    return kind


Look = Callable[[Facts], Iterable[Finding]]


@dataclass(frozen=True, slots=True)
class Check:
    """``title`` is what holds where ``look`` finds nothing."""

    group: str
    title: str
    look: Look


@dataclass(frozen=True, slots=True)
class Result:
    check: Check
    findings: tuple[Finding, ...]


def unchecked(about: str, unknown: Unknown) -> Finding:
    return NOT_CHECKED.of(about, unknown.why)


def examine(facts: Facts, checks: Iterable[Check]) -> list[Result]:
    """What every check says of ``facts``, in order."""
    return [Result(check, tuple(check.look(facts))) for check in checks]
