"""Links of programs, alerts and manifests to the documentation lead to a page that is there."""

import ast
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from deviceplugin.errors import Reason
from gpushare.text.manual import DOCUMENTATION
from gpusharectl.doctor.checks.findings import KINDS
from gpusharectl.doctor.command import CHECKS
from tests.markdown import ROOT, anchors

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PROGRAMS = ("gpushare", "gpusharectl", "extender", "deviceplugin")


def texts() -> list[Path]:
    """Return the files of the repository that are neither documents nor tests."""
    names = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, check=True, text=True
    )
    paths = [ROOT / name for name in names.stdout.split("\n") if name]
    kinds = {".py", ".yaml", ".yml", ".json", ".html", ".js", ".txt", ".tpl", ""}
    return [
        path
        for path in paths
        if path.suffix in kinds
        and path.is_file()
        and "docs" not in path.parts
        and path.parent.name != "tests"
    ]


def missing(link: str) -> str:
    """Return why a page or its heading is not there; empty if it is."""
    page, _, anchor = link.partition("#")
    path = ROOT / "docs" / page
    if not path.is_file():
        return f"{link}: no such page"
    return f"{link}: no such heading" if anchor and anchor not in anchors(path) else ""


@pytest.mark.parametrize("folder", [*PROGRAMS, "daemonset", "monitoring", "release", ".github"])
def test_every_url_of_the_documentation_leads_to_a_page_and_heading(folder):
    wrong = set()
    for path in texts():
        if path.relative_to(ROOT).parts[0] == folder:
            text = path.read_text(encoding="utf-8")
            named = re.findall(rf"{re.escape(DOCUMENTATION)}/([\w/.-]+\.md(?:#[\w-]+)?)", text)
            named += re.findall(r"\bmanual\(['\"]([^'\"]+)['\"]\)", text)
            wrong |= {f"{path.relative_to(ROOT)}: {why}" for why in map(missing, named) if why}
    assert wrong == set()


def test_every_finding_of_doctor_leads_to_a_page_and_heading():
    assert CHECKS
    links = {kind.document.removeprefix(f"{DOCUMENTATION}/") for kind in KINDS.values()}
    assert {why for why in map(missing, links) if why} == set()


def test_the_documentation_is_where_the_package_says():
    assert PROJECT["urls"]["Documentation"].replace("/tree/", "/blob/") == DOCUMENTATION


@pytest.mark.parametrize("folder", PROGRAMS)
def test_programs_print_urls_and_no_paths_of_documents(folder):
    printed = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in printed_texts(ast.parse(path.read_text()))
        if re.search(r"(?<!/)\bdocs/[\w/-]+", node.value)
    ]
    assert printed == []


def printed_texts(tree: ast.Module) -> list[ast.Constant]:
    """Return the texts that are not docstrings."""
    described = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(each.body[0].value)
        for each in ast.walk(tree)
        if isinstance(each, described) and each.body and isinstance(each.body[0], ast.Expr)
    }
    return [
        each
        for each in ast.walk(tree)
        if isinstance(each, ast.Constant)
        and isinstance(each.value, str)
        and id(each) not in docstrings
    ]


def test_documents_that_comments_name_are_there():
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in texts()
        for name in re.findall(r"(?<![\w/])docs/[\w/-]+\.md", path.read_text(encoding="utf-8"))
        if not (ROOT / name).is_file() and "other_systems" not in path.parts
    ]
    assert wrong == []


def test_every_event_and_every_reason_of_a_pods_condition_is_explained():
    explained = (ROOT / "docs/troubleshooting.md").read_text()
    written = {
        name
        for folder in ("extender", "deviceplugin", "gpushare")
        for path in (ROOT / folder).rglob("*.py")
        for node in printed_texts(ast.parse(path.read_text()))
        for name in re.findall(r"^Gpushare[A-Z]\w+$", node.value)
    }
    assert "GpushareWaiting" in written
    names = written | {each.value for each in Reason}
    assert {name for name in names if f"`{name}`" not in explained} == set()
