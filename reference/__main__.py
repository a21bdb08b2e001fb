"""Generates blocks of the documents from the code: ``python -m reference [--check]``.

A document has ``<!--generated:NAME WORDS-->`` before a block and ``<!--end-->`` after it. Text
outside of blocks is written by hand. ``--check`` writes nothing and fails, naming the documents, if
a block differs from what the code says now.
"""

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from reference import command_line, findings, metrics, settings

ROOT: Final = Path(__file__).resolve().parent.parent
_BLOCK: Final = re.compile(r"(<!--generated:(.+?)-->\n).*?(<!--end-->)", re.DOTALL)
BLOCKS: Final[dict[str, Callable[..., str]]] = {
    "commands": command_line.commands,
    "common-options": command_line.common_options,
    "metrics": metrics.of_program,
    "extender-configuration": settings.extender,
    "plugin-flags": settings.plugin,
    "about": findings.about,
    "findings": findings.names,
}


def generated(text: str) -> str:
    """Return a document with its blocks as the code says now."""

    def block(found: re.Match[str]) -> str:
        name, *words = found[2].split()
        return f"{found[1]}\n{BLOCKS[name](*words).strip()}\n\n{found[3]}"

    return _BLOCK.sub(block, text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only compare")
    is_check = parser.parse_args().check
    changed = []
    for path in sorted(ROOT.glob("docs/**/*.md")):
        text = path.read_text(encoding="utf-8")
        try:
            wanted = generated(text)
        except KeyError as err:
            sys.exit(f"{path}: there is no block or finding {err}; blocks: {', '.join(BLOCKS)}")
        if wanted != text:
            changed.append(str(path.relative_to(ROOT)))
            if not is_check:
                path.write_text(wanted, encoding="utf-8")
    if is_check and changed:
        sys.exit(f"not what the code says: {', '.join(changed)}; run python -m reference")


if __name__ == "__main__":
    main()
