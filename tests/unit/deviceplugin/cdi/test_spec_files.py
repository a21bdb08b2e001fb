"""CDI files have names by device IDs only, and content that a runtime accepts."""

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.cdi import spec_files
from deviceplugin.errors import Refused

GIVEN = spec_files.Given("uid-1", {"NVIDIA_VISIBLE_DEVICES": "GPU-1", "EMPTY": "", "EQUALS": "a=b"})


@given(
    st.lists(st.text(min_size=1, max_size=4), unique=True, max_size=6).flatmap(
        lambda ids: st.tuples(st.just(ids), st.permutations(ids))
    )
)
def test_the_name_does_not_depend_on_the_order(lists) -> None:
    assert spec_files.share_name(lists[0]) == spec_files.share_name(lists[1])


def test_another_set_of_devices_has_another_name() -> None:
    sets = [["a"], ["a", "b"], ["ab"], []]
    assert len({spec_files.share_name(ids) for ids in sets}) == len(sets)


def test_the_file_is_as_the_cdi_specification_wants_it(tmp_path) -> None:
    specs = spec_files.Specs(tmp_path / "cdi")
    specs.write("abc", GIVEN)
    (path,) = (tmp_path / "cdi").iterdir()
    assert path.name == "gpushare-abc.json"
    assert path.stat().st_mode & 0o777 == 0o644
    assert json.loads(path.read_text()) == {
        "cdiVersion": "0.6.0",
        "kind": "gpushare.aliyun.com/share",
        "annotations": {"gpushare.aliyun.com/pod-uid": "uid-1"},
        "devices": [
            {
                "name": "abc",
                "containerEdits": {"env": ["NVIDIA_VISIBLE_DEVICES=GPU-1", "EMPTY=", "EQUALS=a=b"]},
            }
        ],
    }
    assert specs.read("abc") == GIVEN


DEEP = '{"annotations":{},"devices":[],"other":' + "[" * 5000 + "]" * 5000 + "}"


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '{"kind":1}', DEEP, '{"annotations":{"\udcff":""},"devices":[]}'],
    ids=["empty", "half", "list", "other shape", "deep", "no UTF-8"],
)
def test_a_file_that_cannot_be_read_gives_nothing(tmp_path, content: str) -> None:
    (tmp_path / "gpushare-abc.json").write_text(content, errors="surrogateescape")
    assert spec_files.Specs(tmp_path).read("abc") is None
    assert spec_files.Specs(tmp_path).read("other") is None


@pytest.mark.timeout(60)
@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo], ids=["a folder", "a pipe"])
def test_a_folder_or_pipe_is_read_as_nothing_and_does_not_block(tmp_path, make) -> None:
    make(tmp_path / "gpushare-abc.json")
    assert spec_files.Specs(tmp_path).read("abc") is None


def test_content_that_is_too_long_to_read_back_is_not_written(tmp_path) -> None:
    edits = spec_files.Edits((), {"env": ["A" * 2**23]})
    with pytest.raises(Refused, match=r"uid-1 would have 838[0-9]{4} bytes"):
        spec_files.Specs(tmp_path).write("abc", spec_files.Given("uid-1", {}, edits))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_an_error_that_names_it(tmp_path) -> None:
    (tmp_path / "cdi").write_text("a file in its place")
    with pytest.raises(Refused, match="cdi"):
        spec_files.Specs(tmp_path / "cdi").write("abc", GIVEN)


@pytest.mark.parametrize("name", ["nvidia.com/gpu=0", "", "=", "gpushare.aliyun.com/share"])
def test_other_cdi_devices_are_not_ours(name: str) -> None:
    assert spec_files.share_of_device(name) == ""
    assert spec_files.share_of_device(spec_files.device_name("abc")) == "abc"


def test_old_files_of_deleted_pods_and_invalid_files_are_deleted(tmp_path) -> None:
    specs = spec_files.Specs(tmp_path)
    for share in ("held", "left", "fresh"):
        specs.write(share, spec_files.Given(f"uid-{share}", {}))
    (tmp_path / "nvidia.json").write_text("{}")
    (tmp_path / "gpushare-broken.json").write_text("{")
    (tmp_path / "gpushare-held.new").write_text((tmp_path / "gpushare-held.json").read_text())
    for path in tmp_path.iterdir():
        os.utime(path, (1000, 1000))
    (tmp_path / "gpushare-young.json").write_text("{")
    specs.write("fresh", spec_files.Given("uid-fresh", {}))
    assert specs.sweep({"uid-held"}, before=2000) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "gpushare-fresh.json",
        "gpushare-held.json",
        "gpushare-young.json",
        "nvidia.json",
    ]


@pytest.mark.timeout(60)
def test_the_sweep_continues_after_a_file_that_cannot_be_deleted(tmp_path, caplog) -> None:
    (tmp_path / "gpushare-0.json").mkdir()
    (tmp_path / "gpushare-1.json").symlink_to("nowhere")
    os.mkfifo(tmp_path / "gpushare-2.json")
    (tmp_path / "gpushare-3.json").write_text(DEEP)
    specs = spec_files.Specs(tmp_path)
    specs.write("left", spec_files.Given("uid-left", {}))
    specs.write("held", spec_files.Given("uid-held", {}))
    for _ in range(2):
        specs.sweep({"uid-held"}, before=2**40)
        left = sorted(path.name for path in tmp_path.iterdir())
        assert left == ["gpushare-0.json", "gpushare-held.json"]
    (said, _) = caplog.records
    assert "gpushare-0.json" in said.why
