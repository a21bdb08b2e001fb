"""The table of what was checked (pure)."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    OK = "ok"
    WRONG = "wrong"
    NOT_HERE = "not possible here"


@dataclass(frozen=True, slots=True)
class Row:
    check: str
    verdict: Verdict
    seen: str


def judged(check: str, is_right: bool, seen: str) -> Row:
    return Row(check, Verdict.OK if is_right else Verdict.WRONG, seen)


def not_here(check: str, why: str) -> Row:
    return Row(check, Verdict.NOT_HERE, why)


def table(rows: Iterable[Row]) -> str:
    lines = [("check", "result", "seen"), *((row.check, row.verdict, row.seen) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in (0, 1)]
    return "\n".join(
        f"{check:<{widths[0]}}  {verdict:<{widths[1]}}  {seen}" for check, verdict, seen in lines
    )
