"""Inventories: our annotation, the totals of Aliyun gpushare's device plugin, invalid values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.annotations import inventory
from gpushare.cards.model import Card, Health, Inventory
from gpushare.contract import ANNOTATION_INVENTORY
from gpushare.errors import RecordError
from gpushare.objects.model import Node, ObjectMeta
from gpushare.objects.quantity import MOST_NODE_UNITS
from tests.builders import legacy_node, node, stock

CARDS = st.builds(
    Card,
    index=st.integers(0, 100),
    uuid=st.text(min_size=1, max_size=20),
    units=st.integers(0, MOST_NODE_UNITS),
    health=st.sampled_from(Health),
    tag=st.text(max_size=2),
    minor=st.integers(0, 255),
    model=st.text(max_size=10),
    memory_mib=st.integers(0, 2**30),
    enforces=st.sampled_from(["", "driver", "framework", "nothing", "of a later version"]),
    why_not_more=st.text(max_size=10),
)


@given(
    st.lists(CARDS, unique_by=(lambda c: c.index, lambda c: c.uuid)),
    st.integers(1, 4096),
    st.booleans(),
)
def test_an_inventory_is_read_back_as_it_was_written(cards, unit_mib, is_leaving):
    cards = tuple(sorted(cards, key=lambda card: card.index))
    written = Inventory(unit_mib, cards, plugin="0.1.0", binding="late", is_leaving=is_leaving)
    assert inventory.decode(inventory.encode(written)) == written


@given(st.text() | st.sampled_from(["[" * 4000, "null", "0", '{"version":1}']))
def test_an_annotation_is_an_inventory_or_an_error(text):
    with pytest.raises(RecordError, match=ANNOTATION_INVENTORY):
        inventory.decode(text)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"version":1', '"version":2'),
        ('"unitMiB":1', '"unitMiB":0'),
        ('"unitMiB":1', '"unitMiB":1048577'),
        ('"units":16', '"units":1073741825'),
        ('"units":16', '"units":-16'),
        ('"units":16', '"units":"16"'),
        ('"health":"healthy"', '"health":"fine"'),
        ('"index":1', '"index":0'),
        ('"uuid":"GPU-1"', '"uuid":"GPU-0"'),
        ('"uuid":"GPU-1"', '"uuid":""'),
    ],
)
def test_an_inventory_with_impossible_values_is_an_error(old, new):
    text = inventory.encode(stock(16, 16))
    assert old in text
    with pytest.raises(RecordError):
        inventory.decode(text.replace(old, new))


def test_a_node_of_aliyun_gpushare_has_equal_cards_by_minor():
    found = inventory.of_node(legacy_node("n", "32552", "2"), 1)
    assert found is not None
    assert found.is_legacy
    assert [(card.minor, card.units) for card in found.cards] == [(0, 16276), (1, 16276)]


@pytest.mark.parametrize(("total", "count"), [("0", "2"), ("16", "0")])
def test_a_node_with_incomplete_totals_has_no_cards(total, count):
    assert inventory.of_node(legacy_node("n", total, count), 1) is None


@pytest.mark.parametrize(("total", "count"), [("lots", "2"), ("16", "-2"), ("16", "1M")])
def test_impossible_totals_are_an_error(total, count):
    with pytest.raises(RecordError, match="node status"):
        inventory.of_node(legacy_node("n", total, count), 1)


def test_our_annotation_takes_precedence_and_an_ordinary_node_has_no_cards():
    assert inventory.of_node(node("n", 16, 24), 1) == stock(16, 24)
    assert inventory.of_node(Node(ObjectMeta(name="cpu")), 1) is None
