"""Waits until the controller manager and the scheduler serve, or says why they do not."""

import ssl
import urllib.error
import urllib.request
from pathlib import Path

from localcluster.control import Control
from localcluster.errors import StateError
from localcluster.wait import tail, wait_until

_SECONDS = 30.0
_MOST_RESTARTS = 2


def await_healthy(control: Control, name: str, address: str, log: Path) -> None:
    """Return once the component answers on `https://<address>/healthz`.

    Raises StateError with the end of its log as soon as it has ended a few times, as it does with a
    wrong configuration; DeadlineError after 30 s.
    """
    # It signs its own certificate at each start; nothing secret is sent.
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE

    def seen() -> str | None:
        restarts = next(each.restarts for each in control.status() if each.name == name)
        if restarts > _MOST_RESTARTS:
            raise StateError(f"{name} does not stay up; the end of {log}:\n{tail(log)}")
        try:
            with urllib.request.urlopen(
                f"https://{address}/healthz", timeout=2, context=context
            ) as answer:
                answer.read()
        except (urllib.error.URLError, OSError) as problem:
            return str(problem)
        return None

    wait_until(f"{name} to be healthy", seen, seconds=_SECONDS, log=log)
