"""What others have written reaches no terminal as a command."""

import io

import pytest
from rich.console import Console
from rich.text import Text

from gpushare.errors import SettingsError
from gpushare.text.printable import printable
from gpusharectl.doctor import show as doctor
from gpusharectl.doctor.checks.findings import CheckResult, DoctorFinding, FindingKind, Severity
from gpusharectl.doctor.command import CHECKS
from gpusharectl.terminal.exits import Ending
from gpusharectl.terminal.output import show

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp.exe\r[red]x[/red] :bomb:"
OBEYED = frozenset("\x1b\x07\x9b\u202e\r")


def written(line, **terminal):
    file = io.StringIO()
    show([line], Console(file=file, **terminal))
    return file.getvalue()


@pytest.mark.parametrize("line", [HOSTILE, Text(HOSTILE), Text(HOSTILE, style="bold")])
def test_a_message_of_a_pod_commands_no_terminal(line):
    text = written(line, no_color=True)
    assert OBEYED.isdisjoint(text)
    assert "[red]x[/red] :bomb:" in text


def test_colours_of_our_own_stay_where_they_were():
    line = Text("a\x1bb")
    line.append("c", style="red")
    text = written(line, force_terminal=True, color_system="standard")
    assert text == "a\N{REPLACEMENT CHARACTER}b\x1b[31mc\x1b[0m\n"


def test_words_of_any_language_and_lines_stay():
    for text in ("显卡\u3000不足\n", "écran\u00a0plein\t!", "\N{GRINNING FACE}"):
        assert printable(text) == text


def test_an_error_commands_no_terminal():
    assert OBEYED.isdisjoint(Ending(SettingsError(HOSTILE)).format_message())


def test_a_finding_of_doctor_commands_no_terminal(capsys):
    kind = FindingKind("X", Severity.PROBLEM, "why", "cure")
    result = CheckResult(CHECKS[0], (DoctorFinding(kind, HOSTILE, HOSTILE, HOSTILE),))
    doctor.show([result], Console(no_color=True, emoji=False, width=400))
    text = capsys.readouterr().out
    assert OBEYED.isdisjoint(text)
    assert text.count("[red]x[/red] :bomb:") == 3
