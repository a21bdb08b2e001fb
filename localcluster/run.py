"""Runs a command to its end; errors include the end of its output."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from localcluster.errors import CommandError
from localcluster.wait import patient

_LAST_WORDS = 2000


def run(
    argv: Sequence[str | Path],
    *,
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    seconds: float = 60,
) -> str:
    """Run `argv` and return its standard output.

    Raises CommandError if it cannot be started, exits with a status other than 0, or takes longer
    than patient(`seconds`).
    """
    words = [str(word) for word in argv]
    shown = " ".join(words[:12])
    limit = patient(seconds)
    try:
        done = subprocess.run(
            words,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            env=env,
            cwd=cwd,
            capture_output=True,
            check=False,
            text=True,
            errors="replace",
            timeout=limit,
        )
    except OSError as problem:
        raise CommandError(f"`{shown}` did not start: {problem}") from problem
    except subprocess.TimeoutExpired as problem:
        raise CommandError(f"`{shown}` took longer than {limit:g} s") from problem
    if done.returncode != 0:
        words_said = (done.stderr.strip() or done.stdout.strip())[-_LAST_WORDS:]
        raise CommandError(f"`{shown}` ended with status {done.returncode}: {words_said}")
    return done.stdout
