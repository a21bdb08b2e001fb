"""Make a part of the device plugin fail by an unexpected exception.

A module that Python loads at its start waits for a file and then raises the exception.
"""

from pathlib import Path

_MODULE = """\
import asyncio
import os
import sys

if "deviceplugin" in " ".join(sys.orig_argv):
    from deviceplugin.cards.unit_change import UnitChange

    whole = UnitChange.run

    async def look():
        while True:
            await asyncio.sleep(0.05)
            try:
                os.unlink({path!r})
            except FileNotFoundError:
                continue
            raise RuntimeError("the crash that was asked for")

    async def run(self):
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(whole(self))
            tasks.create_task(look())

    UnitChange.run = run
"""


def put_crash_module(folder: Path, path: Path) -> None:
    """Put the module into ``folder``, for PYTHONPATH; a process fails when ``path`` appears."""
    (folder / "sitecustomize.py").write_text(_MODULE.format(path=str(path)))
