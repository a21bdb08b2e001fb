"""A program ends with an exit code for its reason, and one line if there is something to do."""

import asyncio

import pytest

from gpushare.errors import RestartNeeded, SettingsError
from gpushare.process.lifetime import run, run_until_stopped


async def waits_for_ever() -> None:
    await asyncio.Event().wait()


async def nested(error: Exception) -> None:
    async def fail() -> None:
        raise error

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(fail())


def program(error: Exception) -> int:
    return run(lambda: run_until_stopped(waits_for_ever(), nested(error)), "prog")


def test_a_part_that_needs_a_restart_ends_the_program_with_one_line(capsys) -> None:
    assert program(RestartNeeded("the library was replaced")) == 3
    assert capsys.readouterr().err == "prog: the library was replaced\n"


def test_settings_that_cannot_be_used_end_the_program_with_one_line(capsys) -> None:
    async def fail() -> None:
        raise SettingsError("--port=x: write a port")

    assert run(fail, "prog") == 2
    assert capsys.readouterr().err == "prog: --port=x: write a port\n"


def test_any_other_error_of_a_part_is_raised() -> None:
    with pytest.raises(BaseExceptionGroup):
        program(ZeroDivisionError())
