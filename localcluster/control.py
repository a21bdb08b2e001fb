"""Starts a cluster's supervisor and sends it requests."""

import json
import os
import signal
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localcluster.errors import StateError, UsageError
from localcluster.run import run
from localcluster.state import MARKER, StateFolder
from localcluster.supervised import ProcessSpec
from localcluster.wait import patient, wait_until

_ANSWER_SECONDS = 60.0
_SHUTDOWN_SECONDS = 5.0
_START_SECONDS = 60.0


@dataclass(frozen=True)
class ProcessStatus:
    """What the supervisor knows of one process; `uptime` in seconds, None while not running."""

    name: str
    program: bool
    node: str
    wanted: bool
    pid: int | None
    restarts: int
    uptime: float | None
    last_exit: int | None


class Control:
    """Client of one cluster's supervisor.

    Every method raises StateError if no supervisor answers, UsageError if it refuses the request.
    """

    def __init__(self, state: StateFolder) -> None:
        self._state = state

    def alive(self) -> bool:
        """Return whether a supervisor answers."""
        try:
            self.status()
        except StateError:
            return False
        return True

    def run(self, spec: ProcessSpec) -> None:
        """Start a process and keep it running."""
        self._ask({"do": "run", "spec": spec.to_wire()})

    def start(self, name: str) -> None:
        """Start a stopped process again; do nothing if it runs."""
        self._ask({"do": "start", "name": name})

    def stop(self, name: str, *, grace: float = 10.0) -> None:
        """End a process and do not restart it; it is killed after `grace` seconds, 0 at once."""
        self._ask({"do": "stop", "name": name, "grace": grace})

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """Send a signal to a process. If the signal ends it, it is started again.

        With SIGSTOP, return once every thread is stopped. On a busy machine they run on until one
        of them handles the signal.
        """
        self._ask({"do": "kill", "name": name, "signal": int(number)})
        if number == signal.SIGSTOP:
            [pid] = [each.pid for each in self.status() if each.name == name]
            wait_until(f"{name} to be stopped", lambda: _running_thread(pid), seconds=60)

    def status(self) -> list[ProcessStatus]:
        """Return the processes in the order in which they were started."""
        return [ProcessStatus(**each) for each in self._ask({"do": "status"})["processes"]]

    def shutdown(self) -> None:
        """Stop programs, components and the supervisor; the teardown stops the containers."""
        self._ask({"do": "shutdown"}, seconds=_SHUTDOWN_SECONDS)

    def _ask(self, request: dict[str, Any], *, seconds: float = _ANSWER_SECONDS) -> dict[str, Any]:
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(patient(seconds))
                connection.connect(str(self._state.control_socket))
                connection.sendall(json.dumps(request).encode() + b"\n")
                answer = connection.makefile().readline()
        except OSError as problem:
            name = self._state.name
            text = (
                f"the cluster {name!r} is not up; start it: python -m localcluster up --name {name}"
            )
            if self._state.record.exists():
                text = (
                    f"the supervisor of {name!r} does not answer ({problem}); what it held may"
                    f" still run; remove it: python -m localcluster down --name {name}"
                )
            raise StateError(text) from problem
        if not answer:
            raise StateError(f"the supervisor of {self._state.name!r} ended; run `down`")
        found: dict[str, Any] = json.loads(answer)
        if "error" in found:
            raise UsageError(found["error"])
        return found


def base_environment(state: StateFolder) -> dict[str, str]:
    """Return the environment variables that every process of the cluster has."""
    kept = ("HOME", "LANG", "TMPDIR", "TZ")
    found = {name: os.environ[name] for name in kept if name in os.environ}
    path = os.environ.get("PATH", "")
    return {**found, "PATH": f"{path}:/usr/sbin:/sbin:/usr/bin:/bin", MARKER: str(state.path)}


def start_supervisor(state: StateFolder) -> Control:
    """Start the detached supervisor of `state` and return once it answers."""
    package = Path(__file__).resolve().parent
    env = {**base_environment(state), "PYTHONPATH": str(package.parent)}
    log = state.log("supervisor")
    command = [sys.executable, "-m", "localcluster.supervisor", str(state.path)]
    # Forked by setsid, so that it is nobody's child: neither a Ctrl-C nor the end of this
    # process reaches it.
    shell = f'exec setsid --fork "$@" >>"{log}" 2>&1 </dev/null'
    run(["sh", "-c", shell, "sh", *command], env=env)
    control = Control(state)
    wait_until(
        "the supervisor to answer",
        lambda: None if control.alive() else "no answer on its socket",
        seconds=_START_SECONDS,
        log=log,
    )
    return control


def _running_thread(pid: int | None) -> str | None:
    for each in Path(f"/proc/{pid}/task").glob("*/stat"):
        try:
            # proc(5): the state follows the name, which is in parentheses and may contain some.
            state = each.read_text().rpartition(")")[2].split()[0]
        except OSError as problem:
            return f"a thread that ended: {problem}"
        if state != "T":
            return f"thread {each.parent.name} in state {state}"
    return None
