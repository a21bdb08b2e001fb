"""The snippets of docs/frameworks.md set the limit that a container's variables say."""

import os
import re
import stat
import subprocess
import sys
from types import ModuleType, SimpleNamespace

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpushare.contract import ENV_CARD_UNITS, ENV_CONTAINER_UNITS, RESOURCE_MEMORY
from tests.markdown import ROOT, blocks

PAGE = ROOT / "docs/frameworks.md"
BLOCKS = [(each.language, each.text) for each in blocks(PAGE)]
PYTHON = [text for language, text in BLOCKS if language == "python"]
MANIFESTS = [yaml.safe_load(text) for language, text in BLOCKS if language == "yaml"]
CONTEXT_MIB = 512
# units of the container, units of its GPUs, MiB that a framework may use on each, part of each GPU
CASES = [
    ("8", "22", 8 * 1024 - CONTEXT_MIB, 7.5 / 23),
    ("22", "22", 22 * 1024 - CONTEXT_MIB, 21.5 / 23),
    ("24", "79,79", 12 * 1024 - CONTEXT_MIB, 11.5 / 80),
]


def snippet(word: str) -> str:
    (found,) = [
        text
        for text in PYTHON
        if re.search(rf"^import {word}$|^import {word} as", text, re.MULTILINE)
    ]
    return found


@pytest.fixture
def run(monkeypatch):
    """Run code of the page with these variables and stand-ins for modules."""

    def run(code: str, units: str | None, gpus: str, **modules: object) -> dict[str, str]:
        environ = {} if units is None else {ENV_CONTAINER_UNITS: units, ENV_CARD_UNITS: gpus}
        monkeypatch.setattr(os, "environ", environ)
        for name, module in {"gpu_share": load(), **modules}.items():
            monkeypatch.setitem(sys.modules, name, module)
        exec(compile(code, str(PAGE), "exec"), {"__name__": "snippet"})  # noqa: S102
        return environ

    return run


def load(**constants: int) -> ModuleType:
    module = ModuleType("gpu_share")
    exec(compile(snippet("sys"), str(PAGE), "exec"), module.__dict__)  # noqa: S102
    module.__dict__.update(constants)
    return module


@pytest.mark.parametrize(("units", "gpus", "mib", "part"), CASES)
def test_pytorch_gets_the_part_on_each_gpu(run, units, gpus, mib, part):
    set_to = {}
    cuda = SimpleNamespace(
        device_count=lambda: len(gpus.split(",")),
        set_per_process_memory_fraction=lambda part, device: set_to.update({device: part}),
    )
    run(snippet("torch"), units, gpus, torch=SimpleNamespace(cuda=cuda))
    assert set_to == dict.fromkeys(range(len(gpus.split(","))), pytest.approx(part))


@pytest.mark.parametrize(("units", "gpus", "mib", "part"), CASES)
def test_tensorflow_gets_the_amount_on_each_gpu(run, units, gpus, mib, part):
    set_to = {}
    config = SimpleNamespace(
        LogicalDeviceConfiguration=lambda *, memory_limit: memory_limit,
        list_physical_devices=lambda kind: [f"{kind}:{at}" for at in range(len(gpus.split(",")))],
        set_logical_device_configuration=lambda gpu, devices: set_to.update({gpu: devices}),
    )
    run(snippet("tensorflow"), units, gpus, tensorflow=SimpleNamespace(config=config))
    assert set_to == {f"GPU:{at}": [mib] for at in range(len(gpus.split(",")))}


@pytest.fixture
def jax(tmp_path, monkeypatch):
    """A module that keeps the environment of its import."""
    (tmp_path / "jax.py").write_text("import os\n\nenviron = dict(os.environ)\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("jax", None)


@pytest.mark.usefixtures("jax")
@pytest.mark.parametrize(("units", "gpus", "mib", "part"), CASES)
def test_jax_is_imported_with_the_part_in_its_environment(run, units, gpus, mib, part):
    run(snippet("jax"), units, gpus)
    seen = sys.modules["jax"].environ["XLA_CLIENT_MEM_FRACTION"]
    assert float(seen) == pytest.approx(part, abs=0.0001)


@pytest.mark.parametrize(("units", "gpus", "mib", "part"), CASES)
def test_vllm_is_started_with_the_part(tmp_path, units, gpus, mib, part):
    done = started(tmp_path, {ENV_CONTAINER_UNITS: units, ENV_CARD_UNITS: gpus})
    words = done.stdout.split()
    assert words[0] == "serve"
    given_part = words[words.index("--gpu-memory-utilization") + 1]
    assert float(given_part) == pytest.approx(part, abs=0.0001)


def test_vllm_is_not_started_without_a_share(tmp_path):
    done = started(tmp_path, {})
    assert (done.returncode, done.stdout) == (1, "")
    assert "this container does not request aliyun.com/gpu-mem" in done.stderr


def started(folder, environ):
    """Run the command of vLLM's manifest, with a program that prints its arguments as vllm."""
    (folder / "gpu_share.py").write_text(snippet("sys"))
    vllm = folder / "vllm"
    vllm.write_text('#!/bin/sh\necho "$@"\n')
    vllm.chmod(vllm.stat().st_mode | stat.S_IXUSR)
    spec = MANIFESTS[0]["spec"]["template"]["spec"]
    (main,) = spec["containers"]
    command = [each.replace("/gpu-share/", f"{folder}/") for each in main["command"] + main["args"]]
    path = f"{folder}:{os.path.dirname(sys.executable)}:/usr/bin:/bin"  # noqa: PTH120
    return subprocess.run(
        command, env={**environ, "PATH": path}, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("name", ["torch", "tensorflow", "jax"])
def test_without_a_share_a_program_ends_with_the_reason(run, name):
    cuda = SimpleNamespace(device_count=lambda: 1, set_per_process_memory_fraction=None)
    framework = SimpleNamespace(cuda=cuda, config=SimpleNamespace(LogicalDeviceConfiguration=dict))
    why = r"GPU_MEM\w+ is not set: this container does not request"
    with pytest.raises(SystemExit, match=why):
        run(snippet(name), None, "", **{name: framework})


def test_a_share_that_is_smaller_than_the_context_is_no_limit_of_zero(run):
    with pytest.raises(SystemExit, match="1 units of 512 MiB leave nothing"):
        run(snippet("sys").replace("= 1024", "= 512") + "\nfraction()", "1", "32")


@given(unit=st.sampled_from([1, 256, 1024]), data=st.data())
def test_the_part_is_never_more_than_was_requested(unit, data):
    """Whatever memory the GPU has above its whole units."""
    whole = data.draw(st.integers(1024 // unit, 192 * 1024 // unit))
    units = data.draw(st.integers(-(-513 // unit), whole))
    beyond = data.draw(st.floats(0, 1, exclude_max=True))
    module = load(UNIT_MIB=unit)
    module.os = SimpleNamespace(
        environ={ENV_CONTAINER_UNITS: f"{units}", ENV_CARD_UNITS: f"{whole}"}
    )
    part = float(f"{module.fraction():.4f}")
    assert part * (whole + beyond) * unit + CONTEXT_MIB / 2 < units * unit


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda each: each["metadata"]["name"])
def test_the_manifests_request_and_mount_what_the_snippets_read(manifest):
    spec = manifest["spec"].get("template", manifest)["spec"]
    (main,) = spec["containers"]
    assert main["resources"]["limits"][RESOURCE_MEMORY] > 0
    assert main["volumeMounts"] == [{"name": "gpu-share", "mountPath": "/gpu-share"}]
    (volume,) = spec["volumes"]
    created = next(text for language, text in BLOCKS if language == "sh")
    assert f"configmap {volume['configMap']['name']} --from-file=gpu_share.py" in created
