"""Statements of a platform's page name a trial or a source."""

import re

import pytest

from tests.markdown import ROOT

PAGES = sorted(ROOT.glob("docs/platforms/*.md"))


def rows(text: str) -> list[tuple[str, str]]:
    """Return the statements and their basis."""
    table = text.partition("## What differs\n")[2].partition("\n## ")[0]
    cells = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("|")]
    return [(each[0].strip(), each[-1].strip()) for each in cells[2:]]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_statement_was_tried_or_names_its_source(page):
    text = page.read_text()
    assert re.findall("^## (.+)$", text, re.MULTILINE) == ["What differs", "Values", "Check"]
    found = rows(text)
    assert found
    resting = re.compile(
        r"not known\b|"
        r"tried: .*\]\(\.\./(dev/hardware|install|security)\.md#|"
        r"documented: (.*\]\(https://|the same )"
    )
    assert [each for each, basis in found if not resting.match(basis)] == []


def test_no_platform_is_left_out_of_the_instructions():
    text = (ROOT / "docs/install.md").read_text()
    assert [page.name for page in PAGES if f"(platforms/{page.name})" not in text] == []
