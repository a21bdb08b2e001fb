"""The detached process that runs a cluster's processes and listens on its control socket.

A request is one JSON object on a line, and so is its answer. An answer has either the result or
`error`, a text for a person.
"""

import asyncio
import contextlib
import fcntl
import json
import os
import sys
from pathlib import Path
from typing import Any

from localcluster.supervised import ProcessSpec, Supervised

_GRACE = 10.0
_SHUTDOWN_GRACE = 2.0
_REQUEST_BYTES = 1 << 20


class Supervisor:
    """Answers requests about processes. Every public coroutine is one request."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._processes: dict[str, Supervised] = {}
        self.ended = asyncio.Event()

    async def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Carry out `request` and return its answer."""
        match request:
            case {"do": "run", "spec": dict(spec)}:
                return await self._run(ProcessSpec.from_wire(spec))
            case {"do": "status"}:
                return {"processes": [each.status() for each in self._processes.values()]}
            case {"do": "shutdown"}:
                return await self._shutdown()
            case {"do": str(do), "name": str(name)}:
                found = self._processes.get(name)
                if found is None:
                    known = ", ".join(sorted(self._processes))
                    return {"error": f"nothing is called {name!r} here; there are: {known}"}
                return await self._do(do, found, request)
            case _:
                return {"error": f"not a request: {request}"}

    async def _run(self, spec: ProcessSpec) -> dict[str, Any]:
        before = self._processes.get(spec.name)
        if before is not None and before.wanted:
            return {"error": f"{spec.name} is running already; stop it first"}
        process = Supervised(spec, self._logs / f"{spec.name}.log")
        answer = await self._start(process)
        if "error" not in answer:
            self._processes[spec.name] = process
        return answer

    async def _do(self, do: str, found: Supervised, request: dict[str, Any]) -> dict[str, Any]:
        match do:
            case "start":
                return await self._start(found)
            case "stop":
                await found.stop(float(request.get("grace", _GRACE)))
                return {}
            case "kill":
                if found.kill(int(request["signal"])):
                    return {}
                return {"error": f"{found.spec.name} is not running"}
            case _:
                return {"error": f"not a request: {request}"}

    async def _start(self, process: Supervised) -> dict[str, Any]:
        try:
            await process.start()
        except OSError as problem:
            return {"error": f"{process.spec.name} did not start: {problem}"}
        return {}

    async def _shutdown(self) -> dict[str, Any]:
        # Programs may have something to put in order; the cluster's own parts have not. All are
        # waited for here, for nobody else reaps them.
        for program, grace in ((True, _SHUTDOWN_GRACE), (False, 0)):
            ending = [each for each in self._processes.values() if each.spec.program is program]
            await asyncio.gather(*(each.stop(grace) for each in ending))
        self.ended.set()
        return {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection: one request."""
        with contextlib.suppress(ConnectionError):
            try:
                answer = await self.answer(json.loads(await reader.readline()))
            except (ValueError, TypeError, KeyError) as problem:
                answer = {"error": f"not a request: {problem}"}
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        writer.close()


async def _main(state: Path) -> None:
    supervisor = Supervisor(state / "logs")
    socket = state / "control.sock"
    socket.unlink(missing_ok=True)
    server = await asyncio.start_unix_server(supervisor.serve, socket, limit=_REQUEST_BYTES)
    async with server:
        await supervisor.ended.wait()


def main() -> None:
    """Run until a shutdown request; a second supervisor of the same folder ends at once."""
    state = Path(sys.argv[1])
    os.umask(0o022)
    with (state / "supervisor.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        asyncio.run(_main(state))


if __name__ == "__main__":
    main()
