"""Reloading at SIGHUP: live changes, changes that need a restart, and bad files."""

import logging

import pytest

from extender.settings.file import parse
from extender.settings.reload import Reload

FIRST = "logLevel: info\nlimits: {bind: 5}\n"


class Program:
    def __init__(self, path):
        self.path = path
        path.write_text(FIRST)
        self.applied = []
        self.reload = Reload(path, parse(FIRST.encode()), self.applied.append)

    def read(self, text):
        self.path.write_text(text)
        self.reload()


@pytest.fixture
def program(tmp_path):
    return Program(tmp_path / "extender.yaml")


def last(caplog, message):
    return [record for record in caplog.records if record.message == message][-1]


def test_log_level_and_limits_change_at_once(program, caplog):
    caplog.set_level(logging.INFO)
    program.read("logLevel: debug\nlimits: {bind: 7, filter: 1}\n")
    (now,) = program.applied
    assert (now.log_level, now.limits.bind, now.limits.filter) == ("debug", 7, 1)
    assert last(caplog, "configuration reloaded").changed == [
        "limits.bind",
        "limits.filter",
        "logLevel",
    ]
    assert "restart" not in caplog.text


def test_changes_that_need_a_restart_are_named_and_not_applied(program, caplog):
    program.read(
        "memoryUnit: MiB\nlogLevel: error\nlimits: {bind: 5, bodyMib: 9}\n"
        "listen: {reading: {access: open}}\n"
    )
    (now,) = program.applied
    assert (now.memory_unit, now.log_level, now.limits.body_mib) == ("GiB", "error", 64)
    left = last(caplog, "these changes need a restart").left
    assert left == ["limits.bodyMib", "listen.reading", "memoryUnit"]


@pytest.mark.parametrize("text", ["logLevel: loud", "[", "nothing: 1"])
def test_an_invalid_file_changes_nothing(program, caplog, text):
    program.read(text)
    assert program.applied == []
    assert str(program.path) in last(caplog, "configuration not reloaded").why


def test_a_deleted_file_changes_nothing(program, caplog):
    program.path.unlink()
    program.reload()
    assert program.applied == []
    assert "cannot be read" in last(caplog, "configuration not reloaded").why
