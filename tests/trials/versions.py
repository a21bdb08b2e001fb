"""What depends on kube-scheduler, on several versions of Kubernetes.

    python -m tests.trials.versions all
    python -m tests.trials.versions 1.27 1.37-native-gangs

On each version: the tests with the mark `every_version`, then the trials in `TRIALS`. Exit code 1
if one fails. To run another test or trial on a version, set GPUSHARE_KUBERNETES, as this does.
"""

import argparse
import os
import subprocess
import sys
import time
from typing import Final

from localcluster.build import build
from localcluster.errors import LocalClusterError
from localcluster.interrupts import run_command
from tests.cluster.kubernetes import CHOICES, VARIABLE
from tests.trials.output import Say, exit_code, printer

# A module with a `main`. What it brings up with `tests.cluster.bringup` has the chosen version.
TRIALS: Final = ("tests.trials.faults", "tests.trials.replicas", "tests.trials.preemption")
MARK: Final = "every_version"
ALL: Final = "all"


def main() -> int:
    """Run everything on each version that is named; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("versions", nargs="+", choices=[ALL, *CHOICES], metavar="VERSION")
    named = parser.parse_args().versions
    say = printer()
    failed: list[str] = []
    for name in CHOICES if ALL in named else named:
        failed += run_on(name, say)
    say(f"{len(failed)} FAILED")
    return exit_code(say, failed)


def run_on(name: str, say: Say) -> list[str]:
    """Run everything on one version; return what failed."""
    try:
        build(say, CHOICES[name].version)
    except LocalClusterError as problem:
        return [f"{name}: {problem}"]
    failed = []
    tests = ["pytest", "-q", "-m", MARK, "tests/cluster"]
    for words in (tests, *([each] for each in TRIALS)):
        begun = time.monotonic()
        command = [sys.executable, "-m", *words]
        code = subprocess.run(command, env={**os.environ, VARIABLE: name}, check=False).returncode
        what = f"Kubernetes {name}: {words[0]}"
        ending = f"FAILED ({code})" if code else "passed"
        say(f"{what} {ending} in {time.monotonic() - begun:.0f} s")
        if code:
            failed.append(what)
    return failed


if __name__ == "__main__":
    sys.exit(run_command("versions", main))
