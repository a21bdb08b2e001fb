"""The kubelet's checkpoint: read right, or an error that says so."""

import base64
import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.checkpoint import Entry, parse
from deviceplugin.checkpoint_file import CheckpointFile
from deviceplugin.errors import CheckpointError

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
    assert parse(content(ENTRY, other)) == (
        Entry("uid-1", "app", frozenset({"a0000", "a0001", "b0000"}), b"answer"),
    )


def test_reads_the_plain_list_of_older_kubelets() -> None:
    (entry,) = parse(content(ENTRY | {"DeviceIDs": ["a0000"], "AllocResp": ""}))
    assert entry.device_ids == {"a0000"}


def test_an_empty_node_has_no_entries() -> None:
    assert parse(b'{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":1}') == ()


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
    ],
)
def test_what_is_no_checkpoint_is_an_error_not_an_empty_node(rubbish: bytes) -> None:
    with pytest.raises(CheckpointError):
        parse(rubbish)


@given(st.binary())
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    with contextlib.suppress(CheckpointError):
        parse(content)


@given(st.integers(0, len(content(ENTRY)) - 1))
def test_a_truncated_checkpoint_is_refused(length: int) -> None:
    with pytest.raises(CheckpointError):
        parse(content(ENTRY)[:length])


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
