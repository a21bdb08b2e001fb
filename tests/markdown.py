"""Read Markdown documents: the anchors of headings, links, blocks of commands."""

import re
import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parents[1]
SHELL = frozenset({"sh", "console"})

_FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```\s*$", re.MULTILINE | re.DOTALL)
_MARKER = re.compile(r"<!-- needs (.+?) -->\s*$")
_HEREDOC = re.compile(r"<<-?\s*['\"]?(\w+)")


@dataclass(frozen=True)
class Block:
    """A fenced block; ``needs`` is what no test has, by the comment before the block."""

    document: str
    line: int
    language: str
    text: str
    needs: str = ""


@dataclass(frozen=True)
class Command:
    """One command with its continued lines joined."""

    place: str
    text: str
    needs: str


def documents() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


@cache
def prose(path: Path) -> str:
    """Return the text without its fenced blocks."""
    return _FENCE.sub("", path.read_text(encoding="utf-8"))


@cache
def anchors(path: Path) -> frozenset[str]:
    """Return the anchors of a document's headings, as GitHub makes them."""
    found: Counter[str] = Counter()
    made = set()
    for title in re.findall(r"^#+ +(.+?)\s*$", prose(path), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower()
        anchor = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        made.add(f"{anchor}-{found[anchor]}" if found[anchor] else anchor)
        found[anchor] += 1
    return frozenset(made)


def links(path: Path) -> list[str]:
    """Return the targets of the document's links and pictures."""
    text = re.sub(r"`[^`\n]*`", "", prose(path))
    return re.findall(r"\]\(<?([^)>\s]+)>?(?:\s+\"[^\"]*\")?\)", text)


def blocks(path: Path) -> Iterator[Block]:
    """Yield the fenced blocks."""
    text = path.read_text(encoding="utf-8")
    for match in _FENCE.finditer(text):
        before = text[: match.start()]
        marker = _MARKER.search(before)
        needs, line = marker[1] if marker else "", before.count("\n") + 2
        yield Block(str(path.relative_to(ROOT)), line, match[2], dedent(match[3]), needs)


def commands(block: Block) -> Iterator[Command]:
    """Yield the commands of a block; of ``console`` the lines with a prompt."""
    lines = iter(block.text.splitlines())
    number = block.line - 1
    whole: list[str] = []
    for line in lines:
        number += 1
        is_prompt = block.language == "console" and not whole
        if is_prompt and not line.startswith("$ "):
            continue
        typed = line.removeprefix("$ ") if is_prompt else line
        bare = re.sub(r"(^|\s+)#.*$", "", typed).rstrip()
        if not bare:
            continue
        whole.append(bare.removesuffix("\\").strip())
        if (end := _HEREDOC.search(bare)) is not None:
            for each in lines:
                number += 1
                if each.strip() == end[1]:
                    break
        elif bare.endswith(("\\", "|")) or _is_quote_open(" ".join(whole)):
            continue
        yield Command(f"{block.document}:{number}", " ".join(whole), block.needs)
        whole = []


def all_commands() -> list[Command]:
    return [
        command
        for path in documents()
        for block in blocks(path)
        if block.language in SHELL
        for command in commands(block)
    ]


def _is_quote_open(text: str) -> bool:
    try:
        shlex.split(text)
    except ValueError:
        return True
    return False
