"""The edits of a GPU come from NVIDIA's CDI files, or an error names the fix."""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from deviceplugin.cdi.nvidia_edits import COMMAND, NvidiaSpecs
from deviceplugin.driver.interface import NO_MINOR
from deviceplugin.errors import Refused
from gpushare.cards.model import Card

FIRST, SECOND = Card(0, "GPU-00000000", 8, minor=0), Card(1, "GPU-00000001", 8, minor=1)
COMMON = {
    "env": ["NVIDIA_VISIBLE_DEVICES=void"],
    "deviceNodes": [{"path": "/dev/nvidiactl"}],
    "hooks": [{"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook"}],
}


def node(number: int) -> dict:
    return {"path": f"/dev/nvidia{number}"}


def spec(
    *cards: Card | str, version: str = "0.5.0", kind: str = "nvidia.com/gpu", start: int = 0
) -> dict:
    return {
        "cdiVersion": version,
        "kind": kind,
        "devices": [
            {"name": getattr(card, "uuid", card), "containerEdits": {"deviceNodes": [node(number)]}}
            for number, card in enumerate(cards, start)
        ],
        "containerEdits": COMMON,
    }


def write(path, content: dict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content) if path.suffix == ".json" else yaml.safe_dump(content)
    fresh = path.with_suffix(".fresh")
    fresh.write_text(text)
    fresh.replace(path)


def failure(folder: Path, match: str, cards: Sequence[Card] = (FIRST,)) -> str:
    """Return the error of the edits, which must match."""
    with pytest.raises(Refused, match=match) as refused:
        NvidiaSpecs([folder]).edits(cards)
    return str(refused.value)


def device_nodes(folder: Path, *cards: Card) -> list[dict]:
    return NvidiaSpecs([folder]).edits(cards).content["deviceNodes"]


CONTROL = {"path": "/dev/nvidiactl"}


@pytest.mark.parametrize("name", ["nvidia.yaml", "nvidia.json"])
def test_a_gpu_gets_its_own_edits_and_the_common_ones(tmp_path, name) -> None:
    write(tmp_path / name, spec(FIRST, SECOND, "all"))
    edits = NvidiaSpecs([tmp_path]).edits([SECOND])
    assert edits.content == {**COMMON, "deviceNodes": [CONTROL, node(1)]}
    assert edits.version == (0, 5, 0)


def test_several_gpus_get_the_common_edits_once_and_leave_none_to_the_next(tmp_path) -> None:
    write(tmp_path / "nvidia.yaml", spec(FIRST, SECOND))
    specs = NvidiaSpecs([tmp_path])
    found = specs.edits([FIRST, SECOND]).content
    assert found["deviceNodes"] == [CONTROL, node(0), node(1)]
    assert found["hooks"] == COMMON["hooks"]
    assert specs.edits([SECOND]).content["deviceNodes"] == [CONTROL, node(1)]


def test_a_later_folder_has_precedence_and_the_highest_version_is_required(tmp_path) -> None:
    write(tmp_path / "etc" / "nvidia.yaml", spec(FIRST, SECOND, version="0.7.0"))
    write(tmp_path / "run" / "nvidia.yaml", spec(FIRST, version="1.0.0", start=7))
    specs = NvidiaSpecs([tmp_path / "etc", tmp_path / "run", tmp_path / "none"])
    first = replace(FIRST, minor=7)
    assert node(7) in specs.edits([first]).content["deviceNodes"]
    both = specs.edits([SECOND, first])
    assert both.content["deviceNodes"] == [CONTROL, node(1), node(7)]
    assert both.version == (1, 0, 0)


def test_a_file_that_changes_is_read_again(tmp_path) -> None:
    write(tmp_path / "nvidia.yaml", spec(FIRST))
    specs = NvidiaSpecs([tmp_path])
    specs.edits([FIRST])
    with pytest.raises(Refused):
        specs.edits([SECOND])
    write(tmp_path / "nvidia.yaml", spec(SECOND, start=1))
    assert specs.edits([SECOND])


def test_files_of_other_programs_are_ignored(tmp_path) -> None:
    write(tmp_path / "gpushare-abc.json", spec(FIRST, start=5))
    write(tmp_path / "vendor.yaml", spec(FIRST, kind="vendor.com/nic", version="x"))
    (tmp_path / "broken.yaml").write_text("{")
    (tmp_path / "date.yaml").write_text("made: 2001-99-99")
    (tmp_path / "notes.txt").write_text("{")
    write(tmp_path / "nvidia.yaml", spec(FIRST))
    assert device_nodes(tmp_path, FIRST) == [CONTROL, node(0)]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "found none"),
        ("{", "nvidia.yaml cannot be read"),
        ("- a\n- b\n", "nvidia.yaml cannot be read"),
        ("kind: nvidia.com/gpu\ndevices: 7\n", "nvidia.yaml cannot be read"),
        ("\x00", "nvidia.yaml cannot be read"),
        (yaml.safe_dump(spec(FIRST, version="newest")), "cdiVersion 'newest'"),
        (yaml.safe_dump(spec("0", "1", "all")), r"found 3 others \(0, 1, all\)"),
        ("x" * (2**19 + 1), "more than 524288 bytes"),
        ("kind: nvidia.com/gpu\nmade: 2001-99-99\n", "month must be in 1..12"),
        ("kind: nvidia.com/gpu\nmade: !!timestamp x\n", "nvidia.yaml cannot be read"),
        (yaml.safe_dump(spec(FIRST) | {"containerEdits": {"env": "A=B"}}), r"Expected `array.*env"),
    ],
    ids=[
        *("missing", "half", "list", "other shape", "binary", "version", "no UUIDs", "huge"),
        *("no date", "no time", "env"),
    ],
)
def test_a_missing_gpu_is_an_error_with_the_command(tmp_path, content, said) -> None:
    if content is not None:
        (tmp_path / "nvidia.yaml").write_text(content)
    text = failure(tmp_path, said)
    assert COMMAND in text
    assert f"nvidia.com/gpu={FIRST.uuid}" in text


DEVICE = f"kind: nvidia.com/gpu\ncdiVersion: 0.5.0\ndevices:\n- name: {FIRST.uuid}\n"
BOMB = "a0: &a0 {x: 1}\n" + "".join(
    f"a{n}: &a{n} {{KEY: [*a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 40)
)
HOSTILE = {
    "deep": "[" * 40_000,
    "deep by indent": "\n".join(f"{' ' * n}a:" for n in range(900)),
    "merge keys": BOMB.replace("KEY", "<<"),
    "aliases": BOMB,
    "aliases in our device": f"{DEVICE}  containerEdits:\n    " + BOMB.replace("\n", "\n    "),
    "a part of itself": f"{DEVICE}  containerEdits: &all\n    hooks: [*all]\n",
    "a number": "made: 1" + ":59" * 170_000,
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_file_is_skipped_with_one_log_line(tmp_path, caplog, content) -> None:
    (tmp_path / "other.yaml").write_text(content)
    failure(tmp_path, r"found none; .*other\.yaml cannot be read: line \d+ ")
    write(tmp_path / "nvidia.yaml", spec(FIRST))
    specs = NvidiaSpecs([tmp_path])
    caplog.clear()
    for _ in range(2):
        assert node(0) in specs.edits([FIRST]).content["deviceNodes"]
    (said,) = caplog.records
    assert "other.yaml cannot be read" in said.why


@pytest.mark.parametrize(
    "edits",
    ['{"hooks":' + "[" * 300 + "]" * 300 + "}", '{"hooks":' + "[" * 100_000 + "}"],
    ids=["deep", "deeper"],
)
def test_deeply_nested_edits_are_rejected(tmp_path, edits) -> None:
    text = json.dumps(spec(FIRST)).replace('{"deviceNodes": [{"path": "/dev/nvidia0"}]}', edits)
    assert edits in text
    (tmp_path / "nvidia.json").write_text(text)
    failure(tmp_path, r"nvidia\.json cannot be read")


def test_a_key_that_json_does_not_support_is_rejected(tmp_path) -> None:
    (tmp_path / "nvidia.yaml").write_text(f"{DEVICE}  containerEdits: {{intelRdt: {{null: 1}}}}\n")
    failure(tmp_path, r"nvidia\.yaml cannot be read")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo], ids=["a folder", "a pipe"])
def test_anything_but_a_regular_file_is_skipped(tmp_path, make) -> None:
    make(tmp_path / "other.yaml")
    failure(tmp_path, r"found none; .*other\.yaml")
    write(tmp_path / "nvidia.yaml", spec(FIRST))
    assert NvidiaSpecs([tmp_path]).edits([FIRST])


def test_a_file_name_that_is_not_utf_8_is_reported(tmp_path) -> None:
    (tmp_path / os.fsdecode(b"other-\xff.yaml")).write_text("{")
    text = failure(tmp_path, r"other-\ufffd\.yaml cannot be read")
    assert text.encode()


def test_a_file_that_cannot_be_opened_is_named(tmp_path) -> None:
    (tmp_path / "nvidia.yaml").symlink_to(tmp_path / "nowhere")
    failure(tmp_path, r"nvidia\.yaml")


def test_null_edits_are_ignored(tmp_path) -> None:
    content = spec(FIRST)
    content["devices"][0]["containerEdits"] |= {"env": None, "hooks": None}
    write(tmp_path / "nvidia.yaml", content)
    found = NvidiaSpecs([tmp_path]).edits([FIRST]).content
    assert (found["env"], found["hooks"]) == (COMMON["env"], COMMON["hooks"])
    write(tmp_path / "nvidia.yaml", content | {"containerEdits": {}})
    assert "env" not in NvidiaSpecs([tmp_path]).edits([FIRST]).content


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("mounts", ({"a": 1}, [1])),
        ("mounts", ([1], {"a": 1})),
        ("intelRdt", ({"closID": "0"}, {"closID": "1"})),
    ],
)
def test_edits_that_cannot_be_merged_are_rejected(tmp_path, key, values) -> None:
    content = spec(FIRST, SECOND)
    for device, value in zip(content["devices"], values, strict=True):
        device["containerEdits"][key] = value
    write(tmp_path / "nvidia.yaml", content)
    failure(tmp_path, f"differ in {key}", [FIRST, SECOND])


@pytest.mark.parametrize(
    "other",
    [
        {"path": "/dev/nvidia1"},
        {"path": "/dev/nvidia0", "hostPath": "/run/nvidia/driver/dev/nvidia1"},
    ],
    ids=["path", "hostPath"],
)
def test_a_file_with_old_minor_numbers_opens_no_other_gpu(tmp_path, other) -> None:
    content = spec(FIRST)
    content["devices"][0]["containerEdits"]["deviceNodes"] = [other]
    write(tmp_path / "nvidia.yaml", content)
    text = failure(tmp_path, r"opens /dev/nvidia1, .* as /dev/nvidia0")
    assert COMMAND in text
    assert other in device_nodes(tmp_path, replace(FIRST, minor=1))


def test_a_gpu_whose_number_is_not_known_gets_no_device_node_that_cannot_be_checked(
    tmp_path,
) -> None:
    content = spec(FIRST)
    write(tmp_path / "nvidia.yaml", content)
    odd = replace(FIRST, minor=NO_MINOR)
    failure(tmp_path, "CardQueryFails", [odd])
    del content["devices"][0]["containerEdits"]["deviceNodes"]
    write(tmp_path / "nvidia.yaml", content)
    assert device_nodes(tmp_path, odd) == [{"path": "/dev/nvidiactl"}]


OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (x)\n"
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Sun Feb 25 21:09:05 UTC 2024\n"


def of_driver(version: str) -> dict:
    library = f"/usr/lib/x86_64-linux-gnu/libcuda.so.{version}"
    return COMMON | {"mounts": [{"hostPath": library, "containerPath": library}]}


@pytest.mark.parametrize(
    ("loaded", "is_used"),
    [
        (OPEN, True),
        (CLOSED.format("580.65.06"), True),
        (CLOSED.format("535.161.08"), False),
        (CLOSED.format("580.65"), False),
        ("no driver says that\n", True),
        (None, True),
    ],
)
def test_a_file_for_another_driver_is_rejected(tmp_path, loaded, is_used) -> None:
    write(tmp_path / "nvidia.yaml", spec(FIRST) | {"containerEdits": of_driver("580.65.06")})
    module = tmp_path / "version"
    if loaded is not None:
        module.write_text(loaded)
    specs = NvidiaSpecs([tmp_path], module)
    if is_used:
        assert specs.edits([FIRST]).content["mounts"]
    else:
        with pytest.raises(Refused, match=r"made for driver 580\.65\.06, and .* is loaded"):
            specs.edits([FIRST])
