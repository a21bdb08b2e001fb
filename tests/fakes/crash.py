"""Makes a part of the device plugin fail by an exception that nobody expects.

No command does that, so a module that Python loads at its start waits for a file and raises it.
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
    """Put the module into ``folder``, for a Python that has it in its PYTHONPATH.

    One process fails each time that the file ``path`` appears.
    """
    (folder / "sitecustomize.py").write_text(_MODULE.format(path=str(path)))
