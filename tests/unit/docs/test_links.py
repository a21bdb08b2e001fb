"""Every link of the documents has a target."""

import pytest

from tests.markdown import ROOT, anchors, documents, links

ALL = sorted({*documents(), *ROOT.glob("*.md")})


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.name)
def test_every_relative_link_and_anchor_is_there(path):
    broken = []
    for link in links(path):
        if "://" in link or link.startswith("mailto:"):
            continue
        place, _, anchor = link.partition("#")
        target = (path.parent / place).resolve() if place else path
        if not target.exists() or not target.is_relative_to(ROOT):
            broken.append(f"{link}: no such file")
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            broken.append(f"{link}: no such heading")
    assert broken == []


def test_every_document_can_be_reached_from_the_readme():
    reached, left = set(), [ROOT / "README.md"]
    while left:
        path = left.pop()
        if path in reached:
            continue
        reached.add(path)
        for link in links(path):
            target = (path.parent / link.partition("#")[0]).resolve()
            if target.suffix == ".md" and target.is_relative_to(ROOT) and target.exists():
                left.append(target)
    assert {path.name for path in documents()} - {path.name for path in reached} == set()
