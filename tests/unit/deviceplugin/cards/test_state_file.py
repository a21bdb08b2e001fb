"""The state file is read completely or not at all."""

import asyncio
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY

from deviceplugin.cards import state_file
from deviceplugin.cards.rules import CardHealth, State
from deviceplugin.cards.state_file import Kept, Saved, StateFile, decode, encode
from deviceplugin.cards.survey import Terms, survey
from deviceplugin.errors import StateError
from localcluster.wait import patient
from tests.fakes.driver import card

INVENTORY = survey(None, [card(0), card(1)], Terms(1024)).inventory
ILL = Kept(State.RECOVERING, "XID 48", illnesses=2, owed=120.0)
SAVED = Saved(INVENTORY, {card(1).uuid: ILL})
WHOLE = encode(SAVED)

kept = st.builds(
    Kept,
    state=st.sampled_from(State),
    why=st.text(max_size=20),
    is_gone=st.booleans(),
    illnesses=st.integers(0, 1000),
    owed=st.floats(0, 3600),
    is_mig=st.booleans(),
)


@given(st.dictionaries(st.text(min_size=1, max_size=10), kept, max_size=4))
def test_what_is_written_is_read(healths: dict[str, Kept]) -> None:
    saved = Saved(INVENTORY, healths)
    assert decode(encode(saved)) == saved


def test_a_file_cut_off_at_any_byte_is_not_believed() -> None:
    for length in range(len(WHOLE)):
        with pytest.raises(StateError):
            decode(WHOLE[:length])


def test_a_file_with_any_byte_changed_is_not_believed() -> None:
    for place in range(len(WHOLE)):
        damaged = bytearray(WHOLE)
        damaged[place] ^= 1
        try:
            found = decode(bytes(damaged))
        except StateError:
            continue
        assert found == SAVED, f"byte {place} changed what was read"


@pytest.mark.timeout(60)
def test_a_pipe_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / state_file.FILE)
    assert StateFile(tmp_path).read() is None


@given(st.binary(max_size=200))
def test_garbage_is_not_believed(content: bytes) -> None:
    with pytest.raises(StateError):
        decode(content)


@pytest.mark.parametrize("numbers", [{"owed": -1.0}, {"owed": 3601.0}, {"illnesses": -1}])
def test_numbers_that_no_gpu_can_have_are_not_believed(numbers) -> None:
    odd = Kept(**numbers)
    with pytest.raises(StateError, match="numbers"):
        decode(encode(Saved(INVENTORY, {"GPU-0": odd})))


def test_a_newer_file_is_named_as_such() -> None:
    newer = WHOLE.replace(b'"version":1', b'"version":2', 1)
    with pytest.raises(StateError, match="version 2, of a newer plugin"):
        decode(newer)


async def test_the_file_is_replaced_in_one_step_and_only_for_a_change(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "state")
    assert file.read() is None
    await file.keep(SAVED)
    path = tmp_path / "state" / "state.json"
    first = path.stat()
    await file.keep(Saved(INVENTORY, {card(1).uuid: ILL}))
    assert path.stat() == first
    await file.keep(Saved(INVENTORY))
    assert path.stat().st_ino != first.st_ino
    assert [each.name for each in path.parent.iterdir()] == ["state.json"]
    again = StateFile(tmp_path / "state")
    assert again.read() == Saved(INVENTORY)
    before = path.stat()
    await again.keep(Saved(INVENTORY))
    assert path.stat() == before, "what was read need not be written"


@pytest.mark.parametrize("content", [b"", b"{", b"null", b'{"version":99}', WHOLE[:-1], b"\xff"])
async def test_an_invalid_file_is_logged_and_overwritten(tmp_path: Path, caplog, content) -> None:
    (tmp_path / "state.json").write_bytes(content)
    errors = counted("read")
    file = StateFile(tmp_path)
    assert file.read() is None
    assert "annotation is used" in caplog.text
    assert counted("read") == errors + 1
    await file.keep(SAVED)
    assert StateFile(tmp_path).read() == SAVED


async def test_a_full_disk_is_logged_once_and_keeps_the_old_file(
    tmp_path: Path, caplog, monkeypatch
) -> None:
    file = StateFile(tmp_path)
    await file.keep(SAVED)
    errors = counted("write")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        await file.keep(Saved(INVENTORY))
        await file.keep(Saved(INVENTORY))
    assert caplog.text.count("state file not written") == 1
    assert counted("write") == errors + 2
    assert StateFile(tmp_path).read() == SAVED
    assert not (tmp_path / "state.json.new").exists()
    await file.keep(Saved(INVENTORY))
    assert StateFile(tmp_path).read() == Saved(INVENTORY)


async def test_a_disk_that_hangs_is_logged_and_blocks_nothing(
    tmp_path: Path, caplog, monkeypatch
) -> None:
    monkeypatch.setattr(state_file, "WRITE_SECONDS", 0.05)
    file, goes_on, writes = StateFile(tmp_path), threading.Event(), []

    def hang(_: int) -> None:
        writes.append(1)
        assert goes_on.wait(patient(30))

    monkeypatch.setattr(os, "fsync", hang)
    for _ in range(2):
        async with asyncio.timeout(patient(10)):
            await file.keep(SAVED)
    assert len(writes) == 1, "two must not write one file"
    assert [each.why for each in caplog.records] == ["not written within 0.05 s"]
    goes_on.set()
    monkeypatch.setattr(state_file, "WRITE_SECONDS", 10)
    await file.keep(Saved(INVENTORY))
    assert StateFile(tmp_path).read() == Saved(INVENTORY)


async def test_a_folder_that_cannot_be_written_is_logged(tmp_path: Path, caplog) -> None:
    (tmp_path / "in-the-way").write_text("")
    file = StateFile(tmp_path / "in-the-way")
    assert file.read() is None
    await file.keep(SAVED)
    assert "state file not written" in caplog.text


def test_recovery_continues_with_the_remaining_seconds_on_another_clock() -> None:
    before = CardHealth(
        State.RECOVERING, "XID 48", failures=3, since=5000.0, owed=240.0, is_definite=True
    )
    revived = Kept.of(before, before.owes(5100.0)).revived(now=7.0)
    assert revived.state is State.UNHEALTHY
    assert (revived.owes(1e6), revived.failures, revived.why) == (140.0, 3, "XID 48")


@pytest.mark.parametrize("was", [State.HEALTHY, State.SUSPECT])
def test_a_gpu_that_was_healthy_is_healthy_at_once(was: State) -> None:
    revived = Kept.of(CardHealth(was, failures=2), 0.0).revived(now=7.0)
    assert revived == CardHealth(failures=2, since=7.0)


def counted(what: str) -> float:
    name = "gpushare_deviceplugin_state_errors_total"
    return REGISTRY.get_sample_value(name, {"what": what}) or 0.0
