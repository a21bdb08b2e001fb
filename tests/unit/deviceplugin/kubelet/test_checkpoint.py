"""The kubelet's checkpoint is parsed, or an error names the fault."""

import base64
import contextlib
import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.errors import CheckpointError
from deviceplugin.kubelet.checkpoint import CheckpointFile, Entry, has_devices, parse

ENTRY = {
    "PodUID": "uid-1",
    "ContainerName": "app",
    "ResourceName": "aliyun.com/gpu-mem",
    "DeviceIDs": {"-1": ["a0000", "a0001"], "0": ["b0000"]},
    "AllocResp": base64.b64encode(b"answer").decode(),
}


def content(*entries: dict) -> bytes:
    return json.dumps({"Data": {"PodDeviceEntries": entries}, "Checksum": 7}).encode()


def test_reads_who_holds_which_devices() -> None:
    other = ENTRY | {"ResourceName": "nvidia.com/gpu"}
    (entry,) = parse(content(ENTRY, other)).values()
    assert entry == Entry("uid-1", "app", frozenset({"a0000", "a0001", "b0000"}), b"answer")


def test_reads_the_plain_list_of_older_kubelets() -> None:
    (entry,) = parse(content(ENTRY | {"DeviceIDs": ["a0000"], "AllocResp": ""})).values()
    assert entry.device_ids == {"a0000"}


def test_an_empty_node_has_no_entries() -> None:
    assert parse(b'{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":1}') == {}


@pytest.mark.parametrize(
    "rubbish",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"Data":null}',
        content(ENTRY)[:-30],
        content({"PodUID": 1}),
        content(ENTRY | {"DeviceIDs": "a0000"}),
        content(ENTRY | {"DeviceIDs": {"-1": "a0000"}}),
        content(ENTRY | {"DeviceIDs": {"-1": [1]}}),
        content(ENTRY | {"AllocResp": "no base64!"}),
        b"[" * 100_000,
        b"\x00" * 1000,
        b"\xff\xfe",
        content(ENTRY | {"PodUID": None}),
        content(ENTRY | {"AllocResp": {"v2": "answer"}}),
        json.dumps({"Data": {"PodDeviceEntries": {"uid-1": ENTRY}}}).encode(),
        json.dumps({"data": {"podDeviceEntries": [ENTRY]}}).encode(),
        json.dumps({"Version": "v2", "Pods": [ENTRY]}).encode(),
    ],
)
def test_what_is_no_checkpoint_is_an_error_not_an_empty_node(rubbish: bytes) -> None:
    with pytest.raises(CheckpointError):
        parse(rubbish)


@given(st.binary())
def test_any_bytes_are_parsed_or_rejected(content: bytes) -> None:
    with contextlib.suppress(CheckpointError):
        parse(content)


def test_a_checkpoint_truncated_at_any_byte_is_rejected() -> None:
    whole = content(ENTRY)
    assert parse(whole)
    for length in range(len(whole)):
        with pytest.raises(CheckpointError, match="half written"):
            parse(whole[:length])


def test_a_replaced_file_is_read_again(tmp_path) -> None:
    path = tmp_path / "checkpoint"
    file = CheckpointFile(path)
    assert file.read() == ()
    path.write_bytes(content(ENTRY))
    assert len(file.read()) == 1
    fresh = tmp_path / "fresh"
    fresh.write_bytes(content(ENTRY, ENTRY | {"PodUID": "uid-2"}))
    fresh.replace(path)
    assert len(file.read()) == 2
    path.unlink()
    assert file.read() == ()


@pytest.mark.parametrize(
    "change",
    [
        {"DeviceIDs": {"-1": ["a0000"]}},
        {"DeviceIDs": ["a0000"]},
        {"AllocResp": base64.b64encode(b"another").decode()},
        {"ContainerName": "other"},
        {"PodUID": "uid-2"},
    ],
)
def test_an_entry_that_has_changed_in_any_way_is_read_as_it_is_now(tmp_path, change) -> None:
    path, fresh = tmp_path / "checkpoint", tmp_path / "fresh"
    path.write_bytes(content(ENTRY, ENTRY | {"PodUID": "uid-3"}))
    file = CheckpointFile(path)
    file.read()
    now = content(ENTRY | change, ENTRY | {"PodUID": "uid-3"})
    fresh.write_bytes(now)
    fresh.replace(path)
    assert file.read() == tuple(parse(now).values())


def test_what_could_not_be_read_is_read_again_at_once(tmp_path) -> None:
    path = tmp_path / "checkpoint"
    file = CheckpointFile(path)
    path.write_bytes(content(ENTRY)[:50])
    for _ in range(2):
        with pytest.raises(CheckpointError):
            file.read()
    path.write_bytes(content(ENTRY))
    assert len(file.read()) == 1


def test_a_file_replaced_while_it_is_read_is_read_again_the_next_time(
    tmp_path, monkeypatch
) -> None:
    path, fresh = tmp_path / "checkpoint", tmp_path / "fresh"
    path.write_bytes(content(ENTRY))
    fresh.write_bytes(content(ENTRY, ENTRY | {"PodUID": "uid-2"}))
    really_open = os.open

    def replaced_first(*words) -> int:
        monkeypatch.setattr(os, "open", really_open)
        opened = really_open(*words)
        fresh.replace(path)
        return opened

    monkeypatch.setattr(os, "open", replaced_first)
    file = CheckpointFile(path)
    assert len(file.read()) == 1
    assert len(file.read()) == 2


def test_an_endless_file_is_rejected_and_a_large_one_is_read(tmp_path) -> None:
    path = tmp_path / "checkpoint"
    with path.open("wb") as sparse:
        sparse.truncate(1 << 40)
    with pytest.raises(CheckpointError, match="more than"):
        CheckpointFile(path).read()
    ids = [f"a{number:04d}" for number in range(200_000)]
    path.write_bytes(content(ENTRY | {"DeviceIDs": {"-1": ids}}))
    (entry,) = CheckpointFile(path).read()
    assert len(entry.device_ids) == len(set(ids))


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "make",
    [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")],
    ids=["pipe", "folder", "device"],
)
def test_anything_but_a_regular_file_is_an_error_and_does_not_block(tmp_path, make) -> None:
    path = tmp_path / "checkpoint"
    make(path)
    with pytest.raises(CheckpointError, match="not a regular file"):
        CheckpointFile(path).read()


@pytest.mark.parametrize(
    ("registered", "wanted"),
    [
        (None, False),
        ({}, False),
        ({"nvidia.com/gpu": ["a"]}, False),
        ({"aliyun.com/gpu-mem": None}, False),
        ({"aliyun.com/gpu-mem": []}, False),
        ({"aliyun.com/gpu-mem": ["a0000"]}, True),
    ],
)
def test_devices_count_if_the_kubelet_has_written_them_since(tmp_path, registered, wanted) -> None:
    path, fresh = tmp_path / "checkpoint", tmp_path / "fresh"
    file = CheckpointFile(path)
    before = file.version()
    assert not file.has_devices_since(before)
    content = {"Data": {"PodDeviceEntries": None, "RegisteredDevices": registered}}
    fresh.write_text(json.dumps(content))
    fresh.replace(path)
    assert file.has_devices_since(before) is wanted
    assert not file.has_devices_since(file.version())


@given(st.binary() | st.sampled_from([b'{"Data":{"RegisteredDevices":[]}}', b'{"Data":null}']))
def test_devices_of_another_format_are_an_error(content: bytes) -> None:
    with pytest.raises(CheckpointError):
        has_devices(content)
