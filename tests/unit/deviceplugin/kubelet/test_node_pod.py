"""The parsed parts of a pod equal a fresh parse."""

import pytest

from deviceplugin.kubelet.node_pod import NodePod
from gpushare.annotations.pod_annotations import share_of, share_statuses
from gpushare.contract import LABEL_CARD_COUNT, RESOURCE_MEMORY
from tests.builders import stock
from tests.fakes.pods import container, pod

STOCK = stock(16, 16)
CARDS = ("GPU-0", "GPU-1")


def with_amount(amount: str) -> NodePod:
    made = pod("invalid", [4, 8], cards=CARDS[:1], started=True)
    made.spec.containers[0].resources.limits[RESOURCE_MEMORY] = amount
    return NodePod.of(made)


@pytest.mark.parametrize(
    "made",
    [
        pod("plain", 0, started=True),
        pod("one", [0, 8], init=[4], cards=CARDS[:1], started=True),
        pod("two", 8, cards=CARDS, labels={LABEL_CARD_COUNT: "2"}),
        pod("no-count", 8, cards=CARDS[:1], labels={LABEL_CARD_COUNT: "x"}, started=True),
        pod("undecided", 8),
        with_amount("4.5"),
        with_amount("0"),
    ],
    ids=lambda made: made.metadata.name,
)
def test_share_and_statuses_are_those_of_a_fresh_reading(made: NodePod) -> None:
    assert made.share(STOCK) == share_of(made, STOCK)
    assert made.share_statuses == share_statuses(made)
    assert made.has_run == any(status.has_run for status in share_statuses(made))


def test_an_invalid_request_keeps_the_containers_that_are_valid() -> None:
    made = pod("a", [4, 8], labels={LABEL_CARD_COUNT: "x"}, others=(container("idle", 0),))
    assert made.request is None
    assert LABEL_CARD_COUNT in made.fault
    assert [(each.name, each.units) for each in made.asked or ()] == [("app-0", 4), ("app-1", 8)]
    assert with_amount("4.5").asked is None
