"""Of two replicas behind two kube-schedulers the leader is killed while pods are bound."""

import pytest

from localcluster.gpushare import SCHEDULER_CONFIG
from localcluster.seats import Seats
from localcluster.wait import wait_until
from tests.trials.replicas import CARDS, UNITS, Cards, Trial
from tests.trials.stage import paper_gpu_node

pytestmark = pytest.mark.cluster

PODS = 60
NODES = ("replica-p1", "replica-p2")


@pytest.fixture
def seats(gpushare):
    """Replace the host's kube-scheduler and extender by two of each; add two paper nodes."""
    cluster = gpushare.cluster
    cluster.add_paper_nodes(*(paper_gpu_node(name, CARDS, UNITS) for name in NODES))
    made = Seats.prepare(cluster, 2, SCHEDULER_CONFIG, unit="MiB")
    cluster.stop("extender")
    try:
        for seat in made.names:
            made.start_extender(seat)
            made.start_scheduler(seat)
        yield made
    finally:
        made.remove()
        cluster.remove_paper_nodes(*NODES)
        cluster.start("extender")
        gpushare.wait_ready()


def test_pods_are_bound_once_and_no_card_is_overbooked_when_the_leader_is_killed(seats, figures):
    with Cards(seats.cluster) as history:
        trial = Trial(seats, history, PODS, figures, selector={"localcluster/paper": "true"})
        trial.wait_ready(*seats.names)
        trial.part("killed", trial.killed)
        wait_until(
            "no card to hold anything",
            lambda: str(+history.held) if +history.held else None,
            seconds=60,
        )
    assert not trial.lost
