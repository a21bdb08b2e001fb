"""One supervised process: started, restarted when it ends, stopped, with its log."""

import asyncio
import contextlib
import signal
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

_FIRST_DELAY = 0.2
_LONGEST_DELAY = 5.0
_SETTLED_SECONDS = 10.0


@dataclass(frozen=True)
class ProcessSpec:
    """What to run, under which name, and inside which node, if any.

    `program`: it belongs to the caller, not to the cluster.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    program: bool = False
    restart: bool = True
    node: str = ""

    def to_wire(self) -> dict[str, Any]:
        """Return the spec as it is sent to the supervisor."""
        return asdict(self)

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        """Return the spec that `to_wire` made."""
        return cls(**{**wire, "argv": tuple(wire["argv"])})


class Supervised:
    """Keeps one process running as long as it is wanted.

    Signals go only to the process, never to its group: containerd's shims and containers and a
    stopped kubelet's pods outlive it, as under systemd with KillMode=process.
    """

    def __init__(self, spec: ProcessSpec, log: Path) -> None:
        self.spec = spec
        self.restarts = 0
        self.last_exit: int | None = None
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._started = 0.0
        self._unwanted = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._first_start: asyncio.Future[None] | None = None

    @property
    def wanted(self) -> bool:
        """Whether it runs or is about to be started again."""
        return self._keeper is not None and not self._keeper.done()

    def status(self) -> dict[str, Any]:
        """Return pid (None while it does not run), restarts, uptime in seconds, and last status."""
        running = self._process is not None
        return {
            "name": self.spec.name,
            "program": self.spec.program,
            "node": self.spec.node,
            "wanted": self.wanted,
            "pid": self._process.pid if self._process else None,
            "restarts": self.restarts,
            "uptime": time.monotonic() - self._started if running else None,
            "last_exit": self.last_exit,
        }

    async def start(self) -> None:
        """Start it and keep it running; raises OSError if it cannot be started at all."""
        if self.wanted:
            return
        self._unwanted.clear()
        self._first_start = asyncio.get_running_loop().create_future()
        self._keeper = asyncio.create_task(self._keep())
        await self._first_start

    async def stop(self, grace: float) -> None:
        """Stop it and return once it has ended; after `grace` seconds it is killed.

        With a grace of 0 it is killed at once.
        """
        self._unwanted.set()
        if self._keeper is None:
            return
        self.kill(signal.SIGTERM if grace else signal.SIGKILL)
        done, _ = await asyncio.wait([self._keeper], timeout=grace)
        if not done:
            self.kill(signal.SIGKILL)
            await asyncio.wait([self._keeper])

    def kill(self, number: int) -> bool:
        """Send a signal; return whether the process was running."""
        if self._process is None:
            return False
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)
        return True

    async def _keep(self) -> None:
        delay = _FIRST_DELAY
        while not self._unwanted.is_set():
            try:
                await self._run_once()
            except OSError as problem:
                self._note(f"did not start: {problem}")
                if self._first_start is not None and not self._first_start.done():
                    self._first_start.set_exception(problem)
                    return
            if not self.spec.restart or self._unwanted.is_set():
                return
            if time.monotonic() - self._started > _SETTLED_SECONDS:
                delay = _FIRST_DELAY
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._unwanted.wait(), delay)
            delay = min(2 * delay, _LONGEST_DELAY)
            if not self._unwanted.is_set():
                self.restarts += 1

    async def _run_once(self) -> None:
        with self._log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *self.spec.argv,
                env=dict(self.spec.env),
                cwd="/",
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._process, self._started = process, time.monotonic()
        if self._first_start is not None and not self._first_start.done():
            self._first_start.set_result(None)
        if self._unwanted.is_set():
            process.terminate()
        self.last_exit = await process.wait()
        self._process = None
        self._note(f"pid {process.pid} ended with status {self.last_exit}")

    def _note(self, text: str) -> None:
        with self._log.open("a", encoding="utf-8") as log:
            log.write(f"--- supervisor: {self.spec.name} {text}\n")
