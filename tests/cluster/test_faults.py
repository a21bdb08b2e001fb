"""Despite faults of the API server, each card is given once and every pod is bound.

The short form of ``python -m tests.trials.faults``: all faults of one kind at once, a few of each.
"""

from collections.abc import Callable, Iterator

import pytest

from localcluster.cluster import Cluster
from localcluster.gpushare import Gpushare
from localcluster.wait import wait_until
from tests.cluster.history import History
from tests.fakes.apiserver_proxy import Fault, Kind, binds, lists, reads_pod, watches
from tests.trials.restarts import NETWORK, kill_during_a_binding
from tests.trials.stage import Injected, Stage, stage

pytestmark = pytest.mark.cluster

PER_POD = 5
SECONDS = 60
WRITES = [
    Injected(Kind.CONFLICT, binds, 1),
    Injected(Kind.TOO_MANY, binds, 2),
    Injected(Kind.INTERNAL, binds, 2),
    Injected(Kind.UNAVAILABLE, binds, 2),
    Injected(Kind.HANG, binds, 2),
    Injected(Kind.RESET, binds, 2),
    Injected(Kind.LOST, binds, 4),
    Injected(Kind.LATE, binds, 4, seconds=4.0),
    Injected(Kind.INTERNAL, reads_pod, 2),
]
WATCHES = [
    Injected(Kind.WATCH_CUT, watches, 2),
    Injected(Kind.GONE, watches, 1),
    Injected(Kind.TOO_MANY, lists, 1),
    Injected(Kind.WATCH_ERROR, watches, 1),
    Injected(Kind.INTERNAL, watches, 1),
    Injected(Kind.UNAVAILABLE, lists, 1),
    Injected(Kind.WATCH_SILENT, watches, 1),
]


@pytest.fixture(scope="module")
def staged(
    cluster: Cluster, history: History, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stage]:
    """Add two paper nodes, and restart the extender behind the proxy."""
    folder = tmp_path_factory.mktemp("faults")
    with stage(Gpushare(cluster), history, folder, nodes=2, cards=4) as made:
        yield made


def unmet(faults: list[Fault]) -> str | None:
    """Return which faults no request has met yet; reads that INTERNAL waits for may never come."""
    kinds = [str(each.kind) for each in faults if not each.met and each.kind is not Kind.INTERNAL]
    return f"not met yet: {', '.join(kinds)}" if kinds else None


@pytest.mark.parametrize("faults", [WRITES, WATCHES], ids=["writes", "watches"])
def test_pods_that_fill_all_cards_are_bound_once_despite_faults(
    staged: Stage, figures: Callable[[str], None], faults: list[Injected]
):
    met = staged.inject(faults)
    count = staged.pods_that_fit(PER_POD)
    staged.create("pod", count, PER_POD)
    staged.wait_bound(count, seconds=SECONDS)
    staged.wait_counted(seconds=SECONDS)
    wait_until("every fault to be met", lambda: unmet(met), seconds=SECONDS)
    staged.proxy.heal()
    figures(", ".join(f"{each.met} x {each.kind}" for each in met))
    assert staged.judge() == []
    assert not staged.metric("gpushare_ledger_differences_total")
    assert not staged.metric("gpushare_over_cards_total")
    staged.clear()


def test_no_card_is_given_twice_by_an_extender_killed_during_a_binding(
    staged: Stage, figures: Callable[[str], None]
):
    took, wrong = kill_during_a_binding(staged, "f00", 4, NETWORK)
    figures(f"the next pod was bound {took:.2f} s after the kill")
    assert wrong == []
