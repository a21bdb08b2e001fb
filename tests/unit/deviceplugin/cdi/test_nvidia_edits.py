"""The edits of a card from NVIDIA's CDI files: all that it needs, once, or an error with a cure."""

import json
import os
from dataclasses import replace

import pytest
import yaml

from deviceplugin.cdi.nvidia_edits import COMMAND, NvidiaSpecs
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


@pytest.mark.parametrize("name", ["nvidia.yaml", "nvidia.json"])
def test_a_card_gets_its_own_edits_and_those_of_all(tmp_path, name) -> None:
    write(tmp_path / name, spec(FIRST, SECOND, "all"))
    edits = NvidiaSpecs([tmp_path]).edits([SECOND])
    assert edits.content == {**COMMON, "deviceNodes": [{"path": "/dev/nvidiactl"}, node(1)]}
    assert edits.version == (0, 5, 0)


def test_several_cards_get_the_edits_of_all_once(tmp_path) -> None:
    write(tmp_path / "nvidia.yaml", spec(FIRST, SECOND))
    found = NvidiaSpecs([tmp_path]).edits([FIRST, SECOND]).content
    assert found["deviceNodes"] == [{"path": "/dev/nvidiactl"}, node(0), node(1)]
    assert found["hooks"] == COMMON["hooks"]
    again = NvidiaSpecs([tmp_path]).edits([FIRST]).content
    assert again["deviceNodes"] == [{"path": "/dev/nvidiactl"}, node(0)]


def test_reading_one_card_leaves_nothing_with_the_next(tmp_path) -> None:
    write(tmp_path / "nvidia.yaml", spec(FIRST, SECOND))
    specs = NvidiaSpecs([tmp_path])
    specs.edits([FIRST, SECOND])
    assert specs.edits([SECOND]).content["deviceNodes"] == [{"path": "/dev/nvidiactl"}, node(1)]


def test_a_later_folder_wins_and_the_highest_version_is_wanted(tmp_path) -> None:
    write(tmp_path / "etc" / "nvidia.yaml", spec(FIRST, SECOND, version="0.7.0"))
    write(tmp_path / "run" / "nvidia.yaml", spec(FIRST, version="1.0.0", start=7))
    specs = NvidiaSpecs([tmp_path / "etc", tmp_path / "run", tmp_path / "none"])
    first = replace(FIRST, minor=7)
    assert node(7) in specs.edits([first]).content["deviceNodes"]
    both = specs.edits([SECOND, first])
    assert both.content["deviceNodes"] == [{"path": "/dev/nvidiactl"}, node(1), node(7)]
    assert both.version == (1, 0, 0)


def test_a_file_that_changes_is_read_again(tmp_path) -> None:
    write(tmp_path / "nvidia.yaml", spec(FIRST))
    specs = NvidiaSpecs([tmp_path])
    specs.edits([FIRST])
    with pytest.raises(Refused):
        specs.edits([SECOND])
    write(tmp_path / "nvidia.yaml", spec(SECOND, start=1))
    assert specs.edits([SECOND])


def test_files_of_others_are_not_looked_into(tmp_path) -> None:
    write(tmp_path / "gpushare-abc.json", spec(FIRST, start=5))
    write(tmp_path / "vendor.yaml", spec(FIRST, kind="vendor.com/nic", version="x"))
    (tmp_path / "broken.yaml").write_text("{")
    (tmp_path / "date.yaml").write_text("made: 2001-99-99")
    (tmp_path / "notes.txt").write_text("{")
    write(tmp_path / "nvidia.yaml", spec(FIRST))
    found = NvidiaSpecs([tmp_path]).edits([FIRST]).content
    assert found["deviceNodes"] == [{"path": "/dev/nvidiactl"}, node(0)]


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
def test_a_card_that_is_not_there_is_an_error_with_the_command(tmp_path, content, said) -> None:
    if content is not None:
        (tmp_path / "nvidia.yaml").write_text(content)
    with pytest.raises(Refused, match=said) as refused:
        NvidiaSpecs([tmp_path]).edits([FIRST])
    assert COMMAND in str(refused.value)
    assert f"nvidia.com/gpu={FIRST.uuid}" in str(refused.value)


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


@pytest.mark.timeout(10)
@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_a_file_that_would_take_hours_or_the_process_is_passed_over_with_one_line(
    tmp_path, caplog, content
) -> None:
    (tmp_path / "other.yaml").write_text(content)
    with pytest.raises(Refused, match=r"found none; .*other\.yaml cannot be read: line \d+ "):
        NvidiaSpecs([tmp_path]).edits([FIRST])
    write(tmp_path / "nvidia.yaml", spec(FIRST))
    specs = NvidiaSpecs([tmp_path])
    caplog.clear()
    for _ in range(2):
        assert node(0) in specs.edits([FIRST]).content["deviceNodes"]
    (said,) = caplog.records
    assert "other.yaml cannot be read" in said.why


@pytest.mark.parametrize(
    "edits",
    [
        '{"hooks":' + "[" * 300 + "]" * 300 + "}",
        '{"hooks":' + "[" * 100_000 + "}",
    ],
    ids=["deep", "deeper"],
)
def test_what_could_not_be_compared_or_written_is_no_edit(tmp_path, edits) -> None:
    text = json.dumps(spec(FIRST)).replace('{"deviceNodes": [{"path": "/dev/nvidia0"}]}', edits)
    assert edits in text
    (tmp_path / "nvidia.json").write_text(text)
    with pytest.raises(Refused, match=r"nvidia\.json cannot be read"):
        NvidiaSpecs([tmp_path]).edits([FIRST])


def test_a_key_that_json_has_not_is_no_edit(tmp_path) -> None:
    (tmp_path / "nvidia.yaml").write_text(f"{DEVICE}  containerEdits: {{intelRdt: {{null: 1}}}}\n")
    with pytest.raises(Refused, match=r"nvidia\.yaml cannot be read"):
        NvidiaSpecs([tmp_path]).edits([FIRST])


@pytest.mark.timeout(10)
@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo], ids=["a folder", "a pipe"])
def test_what_is_no_file_is_passed_over(tmp_path, make) -> None:
    make(tmp_path / "other.yaml")
    with pytest.raises(Refused, match=r"found none; .*other\.yaml"):
        NvidiaSpecs([tmp_path]).edits([FIRST])
    write(tmp_path / "nvidia.yaml", spec(FIRST))
    assert NvidiaSpecs([tmp_path]).edits([FIRST])


def test_a_file_whose_name_is_no_text_can_be_told_of(tmp_path) -> None:
    (tmp_path / os.fsdecode(b"other-\xff.yaml")).write_text("{")
    with pytest.raises(Refused, match=r"other-\ufffd\.yaml cannot be read") as refused:
        NvidiaSpecs([tmp_path]).edits([FIRST])
    assert str(refused.value).encode()


def test_a_file_that_cannot_be_opened_is_named(tmp_path) -> None:
    (tmp_path / "nvidia.yaml").symlink_to(tmp_path / "nowhere")
    with pytest.raises(Refused, match=r"nvidia\.yaml"):
        NvidiaSpecs([tmp_path]).edits([FIRST])


def test_nothing_is_no_edit(tmp_path) -> None:
    content = spec(FIRST)
    content["devices"][0]["containerEdits"] |= {"env": None, "hooks": None}
    write(tmp_path / "nvidia.yaml", content)
    found = NvidiaSpecs([tmp_path]).edits([FIRST]).content
    assert (found["env"], found["hooks"]) == (COMMON["env"], COMMON["hooks"])
    write(tmp_path / "nvidia.yaml", content | {"containerEdits": {}})
    assert "env" not in NvidiaSpecs([tmp_path]).edits([FIRST]).content


@pytest.mark.parametrize("shapes", [({"a": 1}, [1]), ([1], {"a": 1})])
def test_edits_of_different_shapes_are_refused(tmp_path, shapes) -> None:
    content = spec(FIRST, SECOND)
    for device, shape in zip(content["devices"], shapes, strict=True):
        device["containerEdits"]["mounts"] = shape
    write(tmp_path / "nvidia.yaml", content)
    with pytest.raises(Refused, match="differ in mounts"):
        NvidiaSpecs([tmp_path]).edits([FIRST, SECOND])


def test_edits_that_cannot_be_one_are_refused(tmp_path) -> None:
    content = spec(FIRST, SECOND)
    for place, device in enumerate(content["devices"]):
        device["containerEdits"]["intelRdt"] = {"closID": str(place)}
    write(tmp_path / "nvidia.yaml", content)
    with pytest.raises(Refused, match="differ in intelRdt"):
        NvidiaSpecs([tmp_path]).edits([FIRST, SECOND])


@pytest.mark.parametrize(
    "other",
    [
        {"path": "/dev/nvidia1"},
        {"path": "/dev/nvidia0", "hostPath": "/run/nvidia/driver/dev/nvidia1"},
    ],
    ids=["path", "hostPath"],
)
def test_a_file_from_before_the_cards_were_numbered_anew_opens_no_other_card(
    tmp_path, other
) -> None:
    content = spec(FIRST)
    content["devices"][0]["containerEdits"]["deviceNodes"] = [other]
    write(tmp_path / "nvidia.yaml", content)
    with pytest.raises(Refused, match=r"opens /dev/nvidia1, .* as /dev/nvidia0") as refused:
        NvidiaSpecs([tmp_path]).edits([FIRST])
    assert COMMAND in str(refused.value)
    found = NvidiaSpecs([tmp_path]).edits([replace(FIRST, minor=1)]).content
    assert other in found["deviceNodes"]


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
def test_a_file_that_was_made_for_another_driver_is_refused(tmp_path, loaded, is_used) -> None:
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
