"""docs/doctor.md has every finding that there is, and no other."""

import re

from gpusharectl.doctor.checks.findings import KINDS
from gpusharectl.doctor.command import CHECKS
from tests.unit.gpusharectl.doctor.clusters import ROOT

TEXT = (ROOT / "docs" / "doctor.md").read_text()


def sections() -> dict[str, str]:
    """Every finding's own text, by its name."""
    findings = TEXT.partition("\n## Findings\n")[2].partition("\n## ")[0]
    parts = re.split(r"^### (\w+)\n", findings, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_finding_is_in_the_document_with_its_severity():
    told = {name: text.strip().partition(".")[0].lower() for name, text in sections().items()}
    assert told == {name: kind.severity.value for name, kind in KINDS.items()}


def test_every_document_that_a_finding_names_is_there():
    named = {path for kind in KINDS.values() for path in re.findall(r"docs/[\w.-]+\.md", str(kind))}
    assert named
    assert {path for path in named if not (ROOT / path).exists()} == set()


def test_the_number_of_checks_in_the_example_is_theirs():
    assert f"\n{len(CHECKS)} checks: " in TEXT
