"""Starts processes on the GPU and reads their reports; waits for none of them for long."""

import asyncio
import contextlib
import os
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import msgspec

from bench.limits.rules import Report
from gpushare.contract import ENV_FRAMEWORKS

REPORT_SECONDS: Final = 90.0  # frameworks start slowly, and JAX waits before it gives up
END_SECONDS: Final = 10.0
LINES: Final = 15  # shown of what a process that failed has written
_PROGRAM: Final = Path(__file__).with_name("child.py")


@dataclass(frozen=True, slots=True)
class Place:
    """Where children run: on the GPU with this UUID, by this interpreter."""

    python: Path
    uuid: str


class Child:
    def __init__(self, process: asyncio.subprocess.Process, errors: IO[bytes]) -> None:
        self._process = process
        self._errors = errors

    @property
    def pid(self) -> int:
        return self._process.pid

    async def report(self) -> Report:
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(REPORT_SECONDS):
                line = await self._process.stdout.readline()
                if line:
                    report = msgspec.json.decode(line, type=Report)
                else:
                    report = Report(error=f"ended with status {await self._process.wait()}")
        except TimeoutError:
            report = Report(error=f"no answer within {REPORT_SECONDS:g} s")
        if report.error:
            self._errors.seek(0)
            lines = self._errors.read().decode(errors="replace").splitlines()
            print(*lines[-LINES:], sep="\n")
        return report

    async def end(self) -> None:
        """End the process, which frees its memory; leave it where it cannot be ended."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        for _ in range(2):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), END_SECONDS)
                return
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()


@asynccontextmanager
async def child(
    place: Place, words: tuple[str | int, ...], variables: Mapping[str, str]
) -> AsyncIterator[Child]:
    """Start ``child.py``; it is ended with the context."""
    inherited = {key: text for key, text in os.environ.items() if key not in ENV_FRAMEWORKS}
    with tempfile.TemporaryFile() as errors:
        process = await asyncio.create_subprocess_exec(
            *(str(each) for each in (place.python, _PROGRAM, *words)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            env={**inherited, "CUDA_VISIBLE_DEVICES": place.uuid, **variables},
        )
        started = Child(process, errors)
        try:
            yield started
        finally:
            await started.end()
