"""The snippets of docs/frameworks.md set the limit that a container's variables say."""

import os
import re
import stat
import subprocess
import sys
from types import SimpleNamespace

import pytest
import yaml

from gpushare.contract import ENV_ALLOCATABLE, ENV_FRACTION, RESOURCE_MEMORY
from tests.markdown import ROOT, blocks

PAGE = ROOT / "docs/frameworks.md"
BLOCKS = [(each.language, each.text) for each in blocks(PAGE)]
PYTHON = [text for language, text in BLOCKS if language == "python"]
(MANIFEST,) = [yaml.safe_load(text) for language, text in BLOCKS if language == "yaml"]
VARIABLES = {ENV_ALLOCATABLE: "7680", ENV_FRACTION: "0.0941"}


def snippet(word: str) -> str:
    pattern = rf"^import {word}$|^import {word} as"
    (found,) = [text for text in PYTHON if re.search(pattern, text, re.MULTILINE)]
    return found


def run(code: str, monkeypatch: pytest.MonkeyPatch, **modules: object) -> None:
    """Run code of the page in a container with a share, and stand-ins for modules."""
    monkeypatch.setattr(os, "environ", VARIABLES)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    exec(compile(code, str(PAGE), "exec"), {"__name__": "snippet"})  # noqa: S102


@pytest.mark.parametrize("gpus", [1, 2])
def test_pytorch_gets_the_part_on_each_gpu(monkeypatch, gpus):
    set_to = {}
    cuda = SimpleNamespace(
        device_count=lambda: gpus,
        set_per_process_memory_fraction=lambda part, device: set_to.update({device: part}),
    )
    run(snippet("torch"), monkeypatch, torch=SimpleNamespace(cuda=cuda))
    assert set_to == dict.fromkeys(range(gpus), 0.0941)


@pytest.mark.parametrize("gpus", [1, 2])
def test_tensorflow_gets_the_amount_on_each_gpu(monkeypatch, gpus):
    set_to = {}
    config = SimpleNamespace(
        LogicalDeviceConfiguration=lambda *, memory_limit: memory_limit,
        list_physical_devices=lambda kind: [f"{kind}:{at}" for at in range(gpus)],
        set_logical_device_configuration=lambda gpu, devices: set_to.update({gpu: devices}),
    )
    run(snippet("tensorflow"), monkeypatch, tensorflow=SimpleNamespace(config=config))
    assert set_to == {f"GPU:{at}": [7680] for at in range(gpus)}


def started(folder, environ):
    """Run the command of vLLM's manifest, with a program that prints its arguments as vllm."""
    vllm = folder / "vllm"
    vllm.write_text('#!/bin/sh\necho "$@"\n')
    vllm.chmod(vllm.stat().st_mode | stat.S_IXUSR)
    (main,) = MANIFEST["spec"]["template"]["spec"]["containers"]
    assert main["resources"]["limits"][RESOURCE_MEMORY] > 0
    return subprocess.run(
        main["command"] + main["args"],
        env={**environ, "PATH": f"{folder}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_vllm_is_started_with_the_part(tmp_path):
    words = started(tmp_path, VARIABLES).stdout.split()
    assert words[0] == "serve"
    assert words[words.index("--gpu-memory-utilization") + 1] == "0.0941"


def test_vllm_is_not_started_without_a_share(tmp_path):
    done = started(tmp_path, {})
    assert done.returncode
    assert not done.stdout
    assert "no aliyun.com/gpu-mem" in done.stderr
