"""One word for one thing: what people read says GPU, and the words of before still work."""

import re

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from gpusharectl.app import COMMANDS, cli

SCENE = """\
kind: Node
metadata: {{name: n1}}
{gpus}: 2 x 16
---
kind: Pod
metadata: {{name: a}}
spec: {{containers: [{{name: main, resources: {{limits: {{aliyun.com/gpu-mem: 4}}}}}}]}}
"""
OF_OTHERS = "card-(policy|models|uuids)"  # annotations


def says(*words):
    found = CliRunner().invoke(cli, words)
    assert "Traceback" not in found.output
    return found.output


def completed(*words):
    found = ShellComplete(cli, {}, "gpushare", "").get_completions(list(words[:-1]), words[-1])
    return {item.value for item in found}


@pytest.mark.parametrize("name", COMMANDS)
def test_no_help_says_card(name):
    assert not re.search(r"\bcards?\b", re.sub(OF_OTHERS, "", says(name, "--help")), re.IGNORECASE)


@pytest.mark.parametrize(
    ("command", "former", "now"),
    [
        (["defragment", "--kubeconfig", "/none"], ["--free-cards", "1"], ["--free-gpus", "1"]),
        (["top", "--kubeconfig", "/none"], ["cards"], ["gpus"]),
        (
            ["simulate", "--example", "training"],
            ["--card-policy", "spread"],
            ["--gpu-policy", "spread"],
        ),
    ],
)
def test_former_words_work_and_are_not_offered(command, former, now):
    assert says(*command, *former) == says(*command, *now)
    assert says(*command, *now) != says(*command, f"{now[0]}x", *now[1:])
    offered = completed(command[0], "-" if now[0].startswith("-") else "")
    assert (now[0] in offered, former[0] in offered) == (True, False)


def test_a_node_has_its_gpus_by_either_key(tmp_path):
    found = {}
    for key in ("gpus", "cards", "gpuz", "gpus: 2 x 16\ncards"):
        scene = tmp_path / "scene.yaml"
        scene.write_text(SCENE.format(gpus=key))
        found[key] = says("simulate", str(scene))
    assert "a to n1, GPU 0 (4 GiB)" in found["gpus"]
    assert found["cards"] == found["gpus"]
    assert "gpuz: there is no such key: did you mean gpus?" in found["gpuz"]
    assert "cards: not together with gpus, which means the same" in found["gpus: 2 x 16\ncards"]
