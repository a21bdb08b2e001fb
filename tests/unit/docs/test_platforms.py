"""A platform's page has the commands from start to end, and each statement its basis."""

import re

import pytest

from tests.markdown import ROOT, blocks

PAGES = sorted(ROOT.glob("docs/platforms/*.md"))
KNOWN = "## What we know and how\n"
# What a statement rests on, at its end.
BASIS = re.compile(r"\(((?:[^()]|\([^()]*\))*)\)$")


def statements(text: str) -> list[str]:
    """Return the items of the list below the last heading, each in one line."""
    found = text.partition(KNOWN)[2].split("\n* ")[1:]
    return [" ".join(each.split()) for each in found]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_begins_with_its_commands(page):
    text = page.read_text()
    headings = re.findall("^## (.+)$", text, re.MULTILINE)
    assert (headings[0], headings[-1]) == ("Install", "What we know and how")
    typed = "".join(each.text for each in blocks(page) if each.language == "sh")
    assert "--namespace gpushare-system" in typed
    assert (
        page.stem == "gpu-operator"
        or {
            word
            for word in ("docker push", "docker-registry", "gpushare doctor", "samples/deployment")
            if word not in typed
        }
        == set()
    )
    assert "gpushare=true" in text or "gpushare: " in text or page.stem == "gpu-operator"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_statement_was_tried_or_names_its_source(page):
    found = statements(page.read_text())
    assert found
    # Sources of several statements have a name in the text before the list.
    named = re.findall(r'"([^"]+)"(?: is)? (?:its )?\[', page.read_text().partition(KNOWN)[2])

    def rests_on_nothing(statement: str) -> bool:
        basis = BASIS.search(statement)
        return basis is None or not (
            re.match(r"tried\b|not known\b", basis[1])
            or "](https://" in basis[1]
            or any(each in basis[1] for each in named)
        )

    assert [each for each in found if rests_on_nothing(each)] == []


def test_no_platform_is_left_out_of_the_instructions():
    text = (ROOT / "docs/install.md").read_text()
    assert [page.name for page in PAGES if f"(platforms/{page.name})" not in text] == []
