"""Kueue in front of gpushare, with the times of docs/kueue.md: what has no room gives quota back.

    python -m tests.trials.kueue

A Job, a group of pods and a JobSet, each in a namespace with gpushare's gate and in one without,
have quota, and no two GPUs with room. A pod that has room waits for their quota. Then room is made:
Kueue admits the Jobs and JobSets again, and the pods of groups are created again. Printed are
seconds since Kueue admitted a gang until its quota is back, until the pod of the next workload is
bound, and since room was made until the gang runs.

Exit code 1 if quota comes back later than 45 s, a gang is placed in part, or something never runs.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Final

from localcluster.cluster import Cluster
from localcluster.interrupts import run_command
from localcluster.wait import wait_until
from localcluster.workloads import Workloads
from tests.cluster.history import History
from tests.cluster.kueue import (
    CASES,
    GANG_UNITS,
    MEMBERS,
    Case,
    apply,
    bound,
    condition,
    configuration,
    delete_groups,
    gang,
    kueue_in_front,
    leave_room_for_one_member,
    not_running,
    queues,
    single,
    whole_or_nothing,
)
from tests.trials.output import Say, exit_code, printer

BACK_SECONDS: Final = 45.0
SECONDS: Final = 240
NEXT: Final = 5

Times = dict[Case, float]


def main() -> int:
    """Play it once; return the exit code."""
    argparse.ArgumentParser(description=__doc__, allow_abbrev=False).parse_args()
    say = printer()
    say(f"Kueue's configuration: {configuration()}")
    with kueue_in_front("gpushare-trials", say) as gpushare, History(gpushare.cluster) as history:
        cluster = gpushare.cluster
        back = _without_room(cluster, say)
        _with_room(cluster, say)
        wrong = [
            f"{case.name}: the quota was back after {seconds:.1f} s"
            for case, seconds in back.items()
            if seconds > BACK_SECONDS
        ]
        try:
            whole_or_nothing(history)
            history.check_bound_once_and_whole()
        except AssertionError as err:
            wrong.append(str(err))
    say(f"{len(wrong)} WRONG")
    return exit_code(say, wrong)


def _without_room(cluster: Cluster, say: Say) -> Times:
    """Return the seconds from admission until the quota was back."""
    leave_room_for_one_member(cluster)
    apply(cluster, queues(GANG_UNITS + NEXT - 1))
    apply(cluster, [each for case in CASES for each in gang(case)])

    def admission(case: Case, status: str) -> bool:
        found = condition(cluster, case, case.workload, "QuotaReserved")
        return found.get("status") == status

    admitted = _first("gangs to have quota", lambda case: admission(case, "True"))
    apply(cluster, [each for case in CASES for each in single(case, "next", NEXT)])
    back = _first("quota to be back", lambda case: admission(case, "False"))
    started = _first(
        "next to be bound",
        lambda case: any(name.startswith("next") for name in bound(cluster, case)),
    )
    for what, times in (("quota back", back), ("next bound", started)):
        _report(say, what, [times[case] - admitted[case] for case in CASES])
    return {case: back[case] - admitted[case] for case in CASES}


def _with_room(cluster: Cluster, say: Say) -> None:
    began = time.monotonic()
    for case in CASES:
        cluster.kubectl("delete", "job", "next", "-n", case.name)
    delete_groups(cluster)
    Workloads(cluster).delete_all()
    apply(cluster, [each for case in CASES if case.kind == "Pod" for each in gang(case)])
    running = _first(
        "gangs to run", lambda case: not not_running(cluster, case, case.gang, MEMBERS)
    )
    _report(say, "gang runs after room was made", [running[case] - began for case in CASES])


def _first(what: str, is_so: Callable[[Case], bool]) -> Times:
    """Return when each case was so for the first time, by ``time.monotonic``."""
    found: Times = {}

    def missing() -> str | None:
        for case in CASES:
            if case not in found and is_so(case):
                found[case] = time.monotonic()
        return None if len(found) == len(CASES) else f"{[each.name for each in found]} are"

    wait_until(what, missing, seconds=SECONDS)
    return found


def _report(say: Say, what: str, seconds: Sequence[float]) -> None:
    each = ", ".join(f"{case.name} {value:.1f}" for case, value in zip(CASES, seconds, strict=True))
    say(f"{what}: {median(seconds):.1f} s, at most {max(seconds):.1f} s ({each})")


if __name__ == "__main__":
    sys.exit(run_command("kueue", main))
