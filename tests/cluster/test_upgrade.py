"""The programs of the release before and of this one work together, whichever comes first."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from localcluster.gpushare import EXTENDER, ROOT, SCHEDULER_CONFIG, Gpushare
from localcluster.seats import Seats
from localcluster.wait import wait_until
from localcluster.workloads import Workloads, pod
from tests.cluster.expect import env_is_card_on_record, sums_are_right
from tests.cluster.test_restarts import restarts

pytestmark = pytest.mark.cluster

# The last commit of the release before this one; docs/upgrade.md.
PREVIOUS = "78b0a092d4657106e28f0b8968951c656333e0c5"
PROGRAMS = ("deviceplugin", "extender", "gpushare", "protos")
NODE = "n1"
# Where this release's kube-scheduler asks; the one before stands elsewhere by default.
LISTEN = {"deciding": {"host": EXTENDER[0], "port": EXTENDER[1]}}


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of the release before."""
    folder = tmp_path_factory.mktemp("previous")
    archive = folder / "previous.tar"
    words = ["git", "-C", str(ROOT), "archive", f"--output={archive}", PREVIOUS, *PROGRAMS]
    try:
        subprocess.run(words, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as problem:
        told = getattr(problem, "stderr", "") or problem
        pytest.skip(
            f"needs commit {PREVIOUS[:7]} of this repository: git fetch --unshallow ({told})"
        )
    subprocess.run(["tar", "-xf", str(archive), "-C", str(folder)], check=True)
    return folder


@pytest.fixture
def before(gpushare: Gpushare, previous: Path) -> Iterator[Gpushare]:
    """Both programs of the release before, the plugin on one node; this release's afterwards."""
    made = Gpushare(gpushare.cluster, source=previous)
    made.restart_extender(listen=LISTEN)
    made.restart_plugin(NODE, binding="auto")
    yield made
    gpushare.restart_extender()
    gpushare.restart_plugin(NODE, binding="auto")


def test_pods_are_placed_and_run_on_while_either_half_is_the_newer_one(
    gpushare: Gpushare, before: Gpushare, pods: Workloads
):
    names = ["both-old", "extender-new", "both-new", "plugin-new"]

    def run(name: str) -> None:
        pods.run(pod(name, 3000, node=NODE))
        there = names[: names.index(name) + 1]
        env_is_card_on_record(pods, *there)
        assert not any(restarts(pods, each) for each in there)
        sums_are_right(gpushare, pods)

    run("both-old")
    gpushare.restart_extender()
    run("extender-new")
    gpushare.restart_plugin(NODE, binding="auto")
    run("both-new")
    before.restart_extender(listen=LISTEN)
    run("plugin-new")
    before.restart_plugin(NODE, binding="auto")
    env_is_card_on_record(pods, *names)
    sums_are_right(before, pods)


@pytest.fixture
def seats(gpushare: Gpushare) -> Iterator[Seats]:
    """Two seats in the place of the host's kube-scheduler and extender, with nothing started."""
    cluster = gpushare.cluster
    made = Seats.prepare(cluster, 2, SCHEDULER_CONFIG, unit="MiB")
    cluster.stop("extender")
    try:
        yield made
    finally:
        made.remove()
        cluster.start("extender")
        gpushare.wait_ready()


def wait_leads(seats: Seats, seat: str) -> None:
    def other() -> str | None:
        leading = seats.leading_extender()
        return None if leading == seat else str(leading)

    wait_until(f"{seat} to lead", other, seconds=30)


def test_replicas_of_both_releases_share_an_election_and_hand_calls_on_to_one_another(
    seats: Seats, previous: Path, pods: Workloads
):
    cluster = seats.cluster
    # Each kube-scheduler asks the extender that does not lead.
    seats.start_extender("s1")
    wait_leads(seats, "s1")
    seats.start_extender("s2", previous)
    seats.start_scheduler("s2")
    pods.run(pod("from-old-to-new", 3000, node=NODE))
    seats.pause("s2", "kube-scheduler")

    cluster.stop("extender-s1")
    wait_leads(seats, "s2")
    cluster.start("extender-s1")
    seats.start_scheduler("s1")
    pods.run(pod("from-new-to-old", 3000, node=NODE))
    assert seats.leading_extender() == "s2"
    env_is_card_on_record(pods, "from-old-to-new", "from-new-to-old")
