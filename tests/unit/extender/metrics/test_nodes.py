"""The sums of nodes on /metrics are the ledger's, whatever changed, and hold nobody up for long."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from extender.metrics import nodes
from extender.metrics.nodes import OF_ALL, NodeMetrics
from extender.metrics.queue import OF_QUEUE
from gpushare.cards.model import Share
from gpushare.ledger.accounts import Reserve
from gpushare.ledger.ledger import Ledger
from tests.builders import stock


def rendered(metrics):
    text = asyncio.run(metrics.render()).decode()
    return {
        (sample.name, sample.labels.get("node", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def share(uid, node, cards, units):
    return Share(uid, "default", uid, node, units, cards)


@pytest.fixture
def ledger():
    made = Ledger()
    made.set_inventory("n", stock(16, 16, unhealthy=[1]))
    made.set_inventory("m", stock(8))
    made.put_share(share("a", "n", ("GPU-0",), 6))
    made.put_share(share("b", "m", ("GPU-0",), 10))
    made.reserve(Reserve("c", "default", "c", "n", ("GPU-0",), 3, 1))
    return made


def test_a_nodes_sums_are_those_of_its_cards(ledger):
    found = rendered(NodeMetrics(ledger))
    assert found["gpushare_node_units", "n"] == 32
    assert found["gpushare_node_used_units", "n"] == 6
    assert found["gpushare_node_reserved_units", "n"] == 3
    assert found["gpushare_node_free_units", "n"] == 7
    assert found["gpushare_node_largest_request_units", "n"] == 7
    assert found["gpushare_node_over_units", "m"] == 2
    assert found["gpushare_cluster_largest_request_units", ""] == 7
    assert found["gpushare_cluster_fragmentation_ratio", ""] == 0.5, "b's like would not fit"


def test_an_unplaced_pod_counts_once_in_the_sum_though_every_card_gives_its_units(ledger):
    ledger.put_share(Share("odd", "default", "odd", "n", 2, why_unplaced="no decision"))
    found = rendered(NodeMetrics(ledger))
    assert found["gpushare_node_used_units", "n"] == 8
    assert found["gpushare_node_free_units", "n"] == 5


def test_a_pod_that_can_start_on_no_card_counts_in_the_sum_and_on_none(ledger):
    pod = Share("odd", "default", "odd", "n", 2, why_unplaced="no decision", starts_nowhere=True)
    ledger.put_share(pod)
    found = rendered(NodeMetrics(ledger))
    assert found["gpushare_node_used_units", "n"] == 8
    assert found["gpushare_node_free_units", "n"] == 7


def test_nodes_without_cards_and_an_empty_cluster_have_their_pages_too():
    found = rendered(NodeMetrics(Ledger()))
    assert found == dict.fromkeys(((name, "") for name in (*OF_ALL, *OF_QUEUE)), 0)
    ledger = Ledger()
    ledger.set_inventory("n", stock())
    assert rendered(NodeMetrics(ledger))["gpushare_node_largest_request_units", "n"] == 0


NODES = st.sampled_from(["n", "m", "k"])
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("node"), NODES, st.lists(st.integers(1, 20), max_size=3)),
        st.tuples(st.just("gone"), NODES, st.none()),
        st.tuples(st.just("pod"), NODES, st.integers(1, 12)),
        st.tuples(st.just("ended"), NODES, st.none()),
        st.tuples(st.just("scrape"), NODES, st.none()),
    ),
    max_size=30,
)


@given(CHANGES)
def test_what_is_kept_from_earlier_scrapes_never_shows_in_a_later_one(changes):
    ledger = Ledger()
    kept = NodeMetrics(ledger)
    for number, (what, name, value) in enumerate(changes):
        match what:
            case "node":
                ledger.set_inventory(name, stock(*value))
            case "gone":
                ledger.set_inventory(name, None)
            case "pod":
                ledger.put_share(share(f"{name}-{number % 3}", name, ("GPU-0",), value))
            case "ended":
                ledger.remove_share(f"{name}-{number % 3}")
            case "scrape":
                rendered(kept)
    assert rendered(kept) == rendered(NodeMetrics(ledger))


async def test_others_go_on_between_two_slices(ledger, monkeypatch):
    monkeypatch.setattr(nodes, "SLICE_SECONDS", 0.0)
    for number in range(50):
        ledger.set_inventory(f"x{number}", stock(8))
    metrics = NodeMetrics(ledger)
    turns = 0
    scrape = asyncio.ensure_future(metrics.render())
    while not scrape.done():
        await asyncio.sleep(0)
        turns += 1
        # A node may go and come while it is rendered.
        ledger.set_inventory("x7", None if turns % 2 else stock(9))
    assert turns > 50
    assert b"gpushare_node_units" in await scrape


async def test_two_scrapes_at_once_are_both_whole(ledger):
    metrics = NodeMetrics(ledger)
    first, second = await asyncio.gather(metrics.render(), metrics.render())
    assert first == second
