"""The one table of all benches: what it shows for a figure."""

import pytest

from bench import figures
from bench.__main__ import ALL
from bench.figures import FIGURES, Note


def row_of(key, notes):
    what = next(figure.what for figure in FIGURES if figure.key == key)
    index = [figure.key for figure in FIGURES].index(key)
    cells = [cell.strip() for cell in figures.table(notes).splitlines()[2 + index].split("|")[1:-1]]
    assert cells[0] == what
    return cells[2:]


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("filter", 1.2, ["1.20 x", "<= 1.3 x", "met"]),
        ("filter", 1.31, ["1.31 x", "<= 1.3 x", "**missed**"]),
        ("filter", 1.304, ["1.30 x", "<= 1.3 x", "met"]),
        ("medium", 0.94, ["0.94 x", ">= 0.95 x", "**missed**"]),
        ("medium", 1.2, ["1.20 x", ">= 0.95 x", "met"]),
        ("exact failed", 0, ["0.00", "<= 0", "met"]),
        ("exact failed", 1, ["1.00", "<= 0", "**missed**"]),
        ("bind", 0.8, ["0.80 ms", "-", ""]),
        ("memory", 501, ["501 MB", "<= 500 MB", "**missed**"]),
    ],
)
def test_a_figure_is_met_or_missed_as_it_is_shown(key, value, shown):
    assert row_of(key, {key: Note(key, value)}) == shown


def test_a_figure_that_was_not_measured_names_the_command_that_does():
    not_run = "not run: `python -m bench.throughput --rows large`"
    assert row_of("large", {}) == [not_run, ">= 0.95 x", ""]


def test_programs_keep_figures_for_the_run_that_asks_for_them(tmp_path, monkeypatch):
    figures.note("bind", 1.0)  # no run makes a table: nothing happens
    monkeypatch.setenv(figures.VARIABLE, str(tmp_path / "figures"))
    figures.note("bind", 1.0)
    figures.note("bind", 0.8)
    figures.note_ratio("filter", 0.3, 0.25, "ms")
    found = figures.noted(tmp_path / "figures")
    assert found["bind"].value == 0.8
    assert row_of("filter", found) == ["1.20 x (0.3 ms against 0.25)", "<= 1.3 x", "met"]
    with pytest.raises(KeyError):
        figures.note("no such figure", 1.0)


def test_the_whole_run_has_the_program_of_every_figure():
    assert {figure.command.split(" --rows")[0] for figure in FIGURES} == set(ALL)
