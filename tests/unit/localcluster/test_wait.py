"""Waits and commands end at their limit, and a machine may be given more patience."""

import pytest

from localcluster.errors import CommandError, DeadlineError
from localcluster.run import run
from localcluster.wait import PATIENCE, wait_until


@pytest.mark.parametrize(("factor", "limit"), [("1", "0.01"), ("3", "0.03")])
def test_a_wait_says_what_it_saw_last_and_how_long_it_waited(
    factor: str, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PATIENCE, factor)
    with pytest.raises(DeadlineError, match=f"waited {limit} s for: a door; last seen: closed"):
        wait_until("a door", lambda: "closed", seconds=0.01)


@pytest.mark.parametrize(("factor", "limit"), [("1", "0.01"), ("3", "0.03")])
def test_a_command_that_takes_too_long_is_named(
    factor: str, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PATIENCE, factor)
    with pytest.raises(CommandError, match=f"`sleep 60` took longer than {limit} s"):
        run(["sleep", "60"], seconds=0.01)
