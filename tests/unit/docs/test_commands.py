"""A test runs every command of the documents, and what they name exists."""

import importlib.util
import re
import subprocess
from functools import cache

import click
import pytest

from gpusharectl.app import cli
from tests.markdown import ROOT, SHELL, all_commands, blocks, documents
from tests.unit.docs.commands import FOREIGN_FLAGS, READS, RUN_BY

COMMANDS = all_commands()
# The beginnings of lines that users type.
_TYPED = re.compile(
    r"^\s*(?:\$ |sudo |\.venv/bin/|(?:kubectl|make|curl|docker|podman|buildah|helm|gpushare|uv|pip|"
    r"python3?|git|promtool|kubeadm|nvidia-\w+|systemctl|journalctl|apt-get|export)\s+[\w./-])"
)
_OURS = (
    *("deviceplugin", "extender", "gpusharectl", "gpushare", "localcluster", "bench", "tests"),
    "release",
)


def names_of_tests():
    texts = [path.read_text() for path in ROOT.glob("tests/**/test_*.py")]
    return {name for text in texts for name in re.findall(r"def (test_\w+)\(", text)}


def test_every_command_is_run_by_a_test_or_says_what_it_needs():
    left = [
        f"{each.place}: {each.text}"
        for each in COMMANDS
        if not each.needs
        and not READS.match(each.text)
        and not any(pattern.fullmatch(each.text) for pattern, _ in RUN_BY)
    ]
    assert left == [], (
        "name the test that runs it in tests/unit/docs/commands.py, or write the comment "
        "`<!-- needs a real GPU -->` (or what else no test has) before the block"
    )


def test_the_tests_that_run_them_are_there():
    assert {name for _, name in RUN_BY} - names_of_tests() == set()


def test_no_line_of_the_table_is_left_over():
    used = {
        pattern.pattern
        for pattern, _ in RUN_BY
        if any(pattern.fullmatch(each.text) for each in COMMANDS)
    }
    assert {pattern.pattern for pattern, _ in RUN_BY} - used == set()


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_no_command_stands_where_it_is_not_looked_at(path):
    hidden = [
        f"{each.document}:{each.line}"
        for each in blocks(path)
        if not each.language and any(_TYPED.match(line) for line in each.text.splitlines())
    ]
    text = path.read_text()
    hidden += [
        line for line in text.splitlines() if re.match(r" {4,}", line) and _TYPED.match(line)
    ]
    inside = "".join(
        each.text for each in blocks(path) if each.language in {*SHELL, "yaml", "json"}
    )
    assert [each for each in hidden if each not in inside] == [], "write a block of ```sh"


def targets():
    return set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_targets_of_make_are_there(path):
    typed = "".join(block.text for block in blocks(path))
    named = set(re.findall(r"`make ([a-z-]+)", path.read_text()))  # it is also an English word
    named |= set(re.findall(r"^make ([a-z-]+)", typed, re.MULTILINE))
    assert named - targets() == set()


def test_a_duration_is_the_same_wherever_it_is_said():
    makefile = (ROOT / "Makefile").read_text()
    said = re.findall(r"^([a-z-]+):.*## .*?(\d+) minutes", makefile, re.MULTILINE)
    wrong = [
        f"{path.name}: {line}"
        for path in documents()
        for line in path.read_text().splitlines()
        for target, minutes in said
        if (found := re.search(rf"make {target}\b(?![ -]*\w).*?(\d+) minutes", line))
        and found[1] != minutes
    ]
    assert said
    assert wrong == []


def test_every_target_of_make_can_be_made():
    command = ["make", "-n", *sorted(targets())]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


def options(command: click.Command, context: click.Context) -> set[str]:
    of = command.get_params(context)
    return {text for each in of for text in (*each.opts, *each.secondary_opts)}


def walk(words: list[str]) -> str:
    """Return which command or option after ``gpushare`` does not exist; empty if all do."""
    command: click.Command = cli
    context = click.Context(command, info_name="gpushare")
    known = options(command, context)
    for word in words:
        if word.startswith("-") and word not in {"-", "--"}:
            if word.split("=")[0] not in known:
                return f"{word} is no option of {context.command_path}"
        elif isinstance(command, click.Group):
            found = command.get_command(context, word)
            if found is None:
                return f"{context.command_path} has no command {word}"
            command, context = found, click.Context(found, info_name=word, parent=context)
            known |= options(command, context)
    return ""


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_commands_and_options_of_gpushare_are_there(path):
    typed = [each.text for each in COMMANDS if each.place.startswith(str(path.relative_to(ROOT)))]
    typed += re.findall(r"`((?:kubectl |\.venv/bin/)?gpushare [a-z][^`\n]*)`", path.read_text())
    wrong = []
    for text in typed:
        for part in re.split(r"\s*(?:\||&&|;|\$\()\s*", text):
            match = re.match(r"(?:\.venv/bin/)?(?:kubectl[ -])?gpushare (.+)", part)
            if match and (problem := walk(match[1].split())):
                wrong.append(f"{part}: {problem}")
    assert wrong == []


@cache
def flags_of_ours():
    found = {"--help", "--version"}
    for folder in _OURS:
        for path in (ROOT / folder).rglob("*.py"):
            if "unit" not in path.parts:
                found |= set(re.findall(r"[\"'`](--[a-z][a-z-]+)", path.read_text()))
    return found


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_every_flag_is_one_of_ours_or_known_to_be_of_another_program(path):
    text = re.sub(r"<!--.*?-->", "", path.read_text())
    named = set(re.findall(r"(?<![\w-])(--[a-z][a-z-]+[a-z])", text))
    assert named - flags_of_ours() - FOREIGN_FLAGS == set()


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_modules_that_are_run_are_there(path):
    named = set(re.findall(r"python3? -m ([\w.]+)", path.read_text()))
    missing = {each for each in named - {"venv", "pip"} if importlib.util.find_spec(each) is None}
    assert missing == set()


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_files_of_the_repository_that_are_named_are_there(path):
    named = re.findall(
        r"`((?:daemonset|monitoring|examples|extender|deviceplugin|gpushare|gpusharectl|localcluster|"
        r"tests|bench|protos)/[\w./-]+?)/?`",
        path.read_text(),
    )
    assert [each for each in named if not (ROOT / each).exists()] == []
