"""The pod's way through the code names functions that are there."""

import ast
import re
from functools import cache

from tests.markdown import ROOT

TEXT = (ROOT / "docs" / "how-it-works.md").read_text()
ROWS = re.findall(r"^\| `([\w/]+\.py)` \| (.+?) \|", TEXT, re.MULTILINE)


@cache
def names(path: str) -> frozenset[str]:
    found = set()
    for node in ast.parse((ROOT / path).read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {
                f"{node.name}.{each.name}"
                for each in node.body
                if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
            }
    return frozenset(found)


def test_every_function_that_is_named_is_in_its_file():
    assert len(ROWS) > 40
    wrong = [
        f"{path}: {name}"
        for path, cell in ROWS
        for name in re.findall(r"`([\w.]+)`", cell)
        if not (ROOT / path).exists() or name not in names(path)
    ]
    assert wrong == []
