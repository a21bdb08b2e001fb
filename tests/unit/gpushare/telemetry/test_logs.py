"""Logs are read in terminals, and quote what others have written."""

import logging
import unicodedata

import msgspec
import pytest

from gpushare.telemetry import logs


def test_what_others_wrote_commands_no_terminal_that_shows_the_log(
    capsys: pytest.CaptureFixture[str],
) -> None:
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    try:
        logs.configure("info")
        hostile = "\x1b[2J\x9b31m\u202e"
        logging.getLogger("x").info("seen", extra={"pod": hostile})
    finally:
        root.setLevel(level)
        root.handlers[:] = handlers
    line = capsys.readouterr().err
    assert {unicodedata.category(each) for each in line[:-1]}.isdisjoint({"Cc", "Cf"})
    assert msgspec.json.decode(line)["pod"] == hostile
