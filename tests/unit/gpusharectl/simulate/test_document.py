"""docs/simulate.md says what the program does."""

import re
from pathlib import Path

import msgspec
import pytest

from gpusharectl.simulate import view
from tests import markdown
from tests.markdown import ROOT
from tests.unit.gpusharectl.simulate.dumps import dump, labels, node, pod
from tests.unit.gpusharectl.simulate.test_command import simulate

PATH = ROOT / "docs" / "simulate.md"
TEXT = PATH.read_text()


def blocks(language=""):
    return [block.text for block in markdown.blocks(PATH) if block.language == language]


def test_the_file_is_one_that_runs():
    text = max(blocks("yaml"), key=len)
    assert "+ train to n1, GPU 0 (8 GiB)" in simulate("-", stdin=text)


def test_the_gain_is_the_one_of_such_a_cluster():
    train = [pod(f"train-{n}", f"gpu-{n // 4}", gpu=2) for n in range(9)]
    notebooks = [pod(f"notebook-{n}", f"gpu-{3 + n // 8}", gpu=1) for n in range(22)]
    nodes = [node(f"gpu-{n}", 8, labels=labels(8, 81559)) for n in range(6)]
    content = dump(*nodes, *train, *notebooks).decode()
    [told] = [block for block in blocks() if " whole" in block]
    assert told in simulate("-", stdin=content)


def test_a_file_of_only_cards_adds_gpus(tmp_path):
    file = tmp_path / "gpus.yaml"
    file.write_text(min(blocks("yaml"), key=len))
    shown = simulate("-", str(file), stdin=dump(node("gpu-1", 4)).decode())
    assert "40 if GPUs were shared by memory" in shown


def test_the_error_is_the_one_that_is_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    [told] = [block for block in blocks() if block.startswith("Error")]
    lines = (
        "kind: Pod\nmetadata: {name: a}\nspec:\n  containers:\n  - resources:\n      limit: {}\n"
    )
    Path("scene.yaml").write_text(lines)
    assert simulate("scene.yaml", code=2) == told


@pytest.mark.parametrize("kind", view._View.__subclasses__())
def test_every_key_of_the_json_is_named(kind):
    table = TEXT.split("## JSON")[1]
    names = {field.encode_name for field in msgspec.structs.fields(kind)}
    assert not names - set(re.findall(r"(\w+)(?:\[\])?`", table))
