"""What a Markdown document has: headings' anchors, links, fenced blocks."""

import re
from collections import Counter
from functools import cache
from pathlib import Path

_FENCE = re.compile(r"^(```+).*?^\1\s*$", re.MULTILINE | re.DOTALL)


@cache
def prose(path: Path) -> str:
    """The text without its fenced blocks."""
    return _FENCE.sub("", path.read_text(encoding="utf-8"))


@cache
def anchors(path: Path) -> frozenset[str]:
    """The anchors of a document's headings, as GitHub and others make them."""
    found: Counter[str] = Counter()
    made = set()
    for title in re.findall(r"^#+ +(.+?)\s*$", prose(path), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower()
        anchor = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        made.add(f"{anchor}-{found[anchor]}" if found[anchor] else anchor)
        found[anchor] += 1
    return frozenset(made)


def links(path: Path) -> list[str]:
    """Where the document's links and pictures lead."""
    text = re.sub(r"`[^`\n]*`", "", prose(path))
    return re.findall(r"\]\(<?([^)>\s]+)>?(?:\s+\"[^\"]*\")?\)", text)
