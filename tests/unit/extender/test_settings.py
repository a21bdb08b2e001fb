"""Flags of the extender: understood, or refused by name with what to write instead."""

import subprocess
import sys

import pytest

from extender import settings
from gpushare.errors import SettingsError


def test_without_flags_it_stands_where_existing_configurations_look_for_it():
    found = settings.parse([])
    assert (found.host, found.port, found.unit_mib) == ("127.0.0.1", 32766, 1024)


def test_a_variable_stands_for_a_flag_and_the_flag_wins(monkeypatch):
    monkeypatch.setenv("GPUSHARE_MEMORY_UNIT", "256MiB")
    assert settings.parse([]).unit_mib == 256
    assert settings.parse(["--memory-unit=MiB"]).unit_mib == 1


@pytest.mark.parametrize(
    "flag",
    [
        "--port=0",
        "--port=65536",
        "--port=x",
        "--port=000001234567",
        "--port=²",
        "--memory-unit=GB",
        "--log-level=loud",
        "--evict-after=-1",
        "--evict-after=soon",
        "--evict-after=123456",
        "--no-such-flag=1",
    ],
)
def test_what_cannot_be_used_is_refused_by_name(flag):
    with pytest.raises(SettingsError, match=flag.partition("=")[0]):
        settings.parse([flag])


def test_a_flag_that_cannot_be_used_ends_the_program_with_one_line():
    done = subprocess.run(
        [sys.executable, "-m", "extender", "--memory-unit=lots"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == (
        "gpushare-extender: --memory-unit=lots: write GiB, MiB or a number of them, as 256MiB\n"
    )
