"""The probe detects by a file's access time whether CDI files are read."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deviceplugin.cdi.probe import probe
from deviceplugin.cdi.rules import Probe


@contextmanager
def reading(folder: Path, pattern: str = "*.json") -> Iterator[list[str]]:
    """Read each such file as soon as it is there, as a runtime with CDI does."""
    read: list[str] = []
    is_over = threading.Event()

    def follow() -> None:
        while not is_over.is_set():
            for path in folder.glob(pattern):
                try:
                    read.append(path.read_text())
                except FileNotFoundError:
                    continue
            is_over.wait(0.001)

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield read
    finally:
        is_over.set()
        thread.join()


def keeps_access_times(folder: Path) -> bool:
    path = folder / "look"
    path.write_text("x")
    os.utime(path, ns=(0, 10**18))
    path.read_bytes()
    moved = path.stat().st_atime_ns != 0
    path.unlink()
    return moved


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    if not keeps_access_times(tmp_path):
        pytest.skip("the file system of temporary files keeps no access times")
    return tmp_path / "cdi"


def test_a_read_file_is_detected(folder: Path) -> None:
    folder.mkdir()
    with reading(folder) as read:
        assert probe(folder, 5) is Probe.READ
    spec = json.loads(read[0])
    assert spec["kind"] == "gpushare.aliyun.com/probe"
    assert [device["name"] for device in spec["devices"]] == ["none"]
    assert list(folder.iterdir()) == [], "nothing is left behind"


def test_an_unread_file_is_detected(folder: Path) -> None:
    assert probe(folder, 0.05) is Probe.UNREAD
    assert list(folder.iterdir()) == []


def test_reads_of_other_files_do_not_count(folder: Path) -> None:
    folder.mkdir()
    (folder / "vendor.json").write_text("{}")
    with reading(folder, "vendor.*") as read:
        assert probe(folder, 0.05) is Probe.UNREAD
    assert read


def test_files_of_a_killed_plugin_do_not_matter(folder: Path) -> None:
    folder.mkdir()
    for name in ("gpushare-probe.json", "gpushare-probe.new"):
        (folder / name).write_text("{")
    assert probe(folder, 0.05) is Probe.UNREAD
    assert list(folder.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "cdi").write_text("a file in its place")
    assert probe(tmp_path / "cdi", 0.05) is Probe.UNKNOWN


def test_a_file_system_without_access_times_is_unknown(tmp_path: Path) -> None:
    call = f"probe(Path({str(tmp_path)!r}), 0.05)"
    code = f"from pathlib import Path; from deviceplugin.cdi.probe import probe; print({call})"
    mounted = f'mount -t tmpfs -o noatime none {tmp_path} && exec {sys.executable} -c "{code}"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", mounted],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[4],
    )
    if done.returncode and "permitted" in done.stderr:
        pytest.skip("only root may mount")
    assert done.stdout.strip() == "unknown", done.stderr
