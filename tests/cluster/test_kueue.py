"""Kueue admits gangs by quota, and then gpushare places them, as docs/kueue.md says."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from localcluster.cluster import Cluster
from localcluster.gpushare import Gpushare
from localcluster.kueue.controllers import KUEUE
from localcluster.wait import wait_until
from localcluster.workloads import Workloads
from tests.cluster.command_line import CommandLine
from tests.cluster.gated import GATE, gates_of
from tests.cluster.history import History
from tests.cluster.kueue import (
    CASES,
    GANG_UNITS,
    KUEUES_GATES,
    MEMBERS,
    Case,
    apply,
    clear,
    condition,
    configuration,
    delete_groups,
    gang,
    hold,
    kueue_in_front,
    leave_room_for_one_member,
    not_running,
    pods_of,
    queues,
    single,
    used,
    wait_each,
    whole_or_nothing,
)

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("kueue")]

PATIENT: Final = {"waitForPodsReady": {"timeout": "10m"}}
SECONDS: Final = 90
NEXT: Final = 5  # units of a pod that has room, but no quota beside a gang
GATED_GROUP: Final = Case("Pod", is_gated=True)


@pytest.fixture(scope="module")
def in_front() -> Iterator[Gpushare]:
    with kueue_in_front("gpushare-kueue", print, **PATIENT) as made:
        yield made


@pytest.fixture
def history(in_front: Gpushare) -> Iterator[History]:
    with History(in_front.cluster) as recorded:
        yield recorded


@pytest.fixture
def gpushare(in_front: Gpushare, history: History) -> Iterator[Gpushare]:
    yield in_front
    history.check_bound_once_and_whole()
    whole_or_nothing(history)
    gates_stay_until_kueue_has_removed_its_own(history)
    clear(in_front.cluster)
    Workloads(in_front.cluster).delete_all()


@contextmanager
def impatient(cluster: Cluster) -> Iterator[None]:
    """Let Kueue take its quota back some seconds after it has admitted what is not ready."""
    KUEUE.restart(cluster, **{**configuration(), "waitForPodsReady": {"timeout": "15s"}})
    yield
    KUEUE.restart(cluster, **{**configuration(), **PATIENT})


def gates_stay_until_kueue_has_removed_its_own(history: History) -> None:
    gated = {case.name for case in CASES if case.is_gated}
    seen: set[str] = set()
    for change in history.changes:
        gates = set(gates_of(change.pod))
        is_first = change.uid not in seen
        seen.add(change.uid)
        if change.pod["metadata"]["namespace"] in gated and (is_first or gates & KUEUES_GATES):
            assert GATE in gates, f"{change.kind} {change.name}: {gates}"


def says(cluster: Cluster, folder: Path, text: str) -> None:
    """Wait until explain says this of a pod of a group."""
    program = CommandLine(cluster.kubeconfig, folder)

    def unsaid() -> str | None:
        said = program.says("explain", "pod", "tune-0", "-n", GATED_GROUP.name, code=1)
        return None if text in said else said

    wait_until(f"explain to say {text!r}", unsaid, seconds=SECONDS)


def test_what_kueue_has_not_admitted_waits_for_kueue_and_then_all_of_it_runs(
    gpushare: Gpushare, tmp_path: Path
):
    cluster = gpushare.cluster
    apply(cluster, queues(2 * GANG_UNITS))
    hold(cluster, "Hold")
    apply(cluster, [each for case in CASES for each in gang(case)])

    def not_waiting(case: Case) -> str | None:
        said = condition(cluster, case, "", "QuotaReserved")
        return None if said.get("status") == "False" else str(said)

    wait_each(cluster, "Kueue to see the gangs", not_waiting, SECONDS)
    for case in CASES:
        expected = KUEUES_GATES | ({GATE} if case.is_gated else set())
        found = [set(gates_of(each)) for each in pods_of(cluster, case)]
        assert found == ([expected] * MEMBERS if case.kind == "Pod" else []), case
    says(cluster, tmp_path, "Kueue removes its gates when it admits the pod")
    hold(cluster, "None")
    wait_each(
        cluster,
        "all gangs to run",
        lambda case: not_running(cluster, case, case.gang, MEMBERS),
        SECONDS,
    )


def test_quota_of_a_gang_that_finds_no_room_comes_back_for_the_next_workload(
    gpushare: Gpushare, tmp_path: Path
):
    cluster = gpushare.cluster
    leave_room_for_one_member(cluster)
    apply(cluster, queues(GANG_UNITS + NEXT - 1))
    apply(cluster, [each for case in CASES for each in gang(case)])
    wait_each(
        cluster,
        "quota for the gangs",
        lambda case: not condition(cluster, case, case.workload, "Admitted"),
        SECONDS,
    )
    apply(cluster, [each for case in CASES for each in single(case, "next", NEXT)])
    says(cluster, tmp_path, "No room for 2 x")

    def not_timed_out(case: Case) -> str | None:
        said = condition(cluster, case, case.workload, "Evicted")
        return None if said.get("reason") == "PodsReadyTimeout" else str(said)

    with impatient(cluster):
        wait_each(cluster, "Kueue to take the quota back", not_timed_out, SECONDS)
    wait_each(cluster, "next to run", lambda case: not_running(cluster, case, "next", 1), SECONDS)

    def not_all_back(case: Case) -> str | None:
        units = used(cluster, case)  # Kueue writes it some time after it has admitted
        return None if units == NEXT else f"{units} units are used"

    wait_each(cluster, "only next to use quota", not_all_back, SECONDS)
    delete_groups(cluster)
