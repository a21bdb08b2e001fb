"""The device list has stable IDs, correct bytes and a size that is known before."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deviceplugin.cards import device_list
from deviceplugin.errors import ListTooLong
from gpushare.cards.model import Card, Health, Inventory
from protos.deviceplugin.v1beta1 import api_pb2

tags = st.text(device_list.DIGITS, min_size=2, max_size=2)


@st.composite
def inventories(draw) -> Inventory:
    cards = [
        Card(index, f"GPU-{index}", draw(st.integers(0, 300)), draw(st.sampled_from(Health)), tag)
        for index, tag in enumerate(draw(st.lists(tags, unique=True, max_size=5)))
    ]
    return Inventory(1, tuple(cards))


@settings(deadline=None)
@given(inventories())
def test_the_bytes_are_what_protobuf_itself_would_write(inventory: Inventory) -> None:
    wanted = api_pb2.ListAndWatchResponse(
        devices=[
            {
                "ID": device_list.device_id(card.tag, unit),
                "health": "Healthy" if card.is_healthy else "Unhealthy",
            }
            for card in inventory.cards
            for unit in range(card.units)
        ]
    )
    assert device_list.message(inventory) == wanted.SerializeToString()


@settings(deadline=None)
@given(inventories())
def test_no_list_is_larger_than_its_worst_size(inventory: Inventory) -> None:
    worst = device_list.worst_bytes(inventory)
    assert len(device_list.message(inventory)) <= worst
    ill = tuple(replace(card, health=Health.UNHEALTHY) for card in inventory.cards)
    assert len(device_list.message(replace(inventory, cards=ill))) == worst


@given(tags, st.integers(0, device_list.MAX_CARD_UNITS - 1))
def test_an_id_contains_tag_and_unit(tag: str, unit: int) -> None:
    text = device_list.device_id(tag, unit)
    assert len(text) == 5
    assert device_list.parse_device_id(text) == (tag, unit)


@given(st.text(max_size=8).filter(lambda text: len(text) != 5 or not text.isalnum()))
def test_other_ids_are_not_mistaken_for_ours(text: str) -> None:
    assert device_list.parse_device_id(text) is None


@settings(deadline=None)
@given(st.lists(st.text(min_size=1), unique=True, max_size=60))
def test_each_gpu_has_a_tag_of_its_own(uuids: list[str]) -> None:
    given_tags: list[str] = []
    for uuid in uuids:
        given_tags.append(device_list.tag_of(uuid, given_tags))
    assert len(set(given_tags)) == len(uuids)
    if uuids:
        assert device_list.tag_of(uuids[0], ()) == given_tags[0]


@pytest.mark.parametrize(
    ("cards", "least"),
    [
        ([16_276] * 2, 1),
        ([81_920] * 2, 1),
        ([81_920] * 4, 2),
        ([81_920] * 8, 4),
        ([143_771] * 8, 6),
        ([183_359] * 8, 7),
        ([300_000], 2),
        ([], 1),
    ],
)
def test_the_refusal_names_the_least_unit_that_fits(cards: list[int], least: int) -> None:
    def with_unit(unit: int) -> Inventory:
        made = (Card(n, f"GPU-{n}", mib // unit) for n, mib in enumerate(cards))
        return Inventory(unit, tuple(made))

    device_list.check_size(with_unit(least), cards)
    if least > 1:
        with pytest.raises(ListTooLong, match=f"--memory-unit={least}MiB"):
            device_list.check_size(with_unit(least - 1), cards)


def test_a_list_of_just_the_kubelets_limit_is_offered() -> None:
    device_list.check_size(Inventory(1, (Card(0, "GPU-0", 209_715),)), [209_715])
    with pytest.raises(ListTooLong):
        device_list.check_size(Inventory(1, (Card(0, "GPU-0", 209_716),)), [209_716])


@settings(deadline=None)
@given(st.data())
def test_preferred_devices_are_free_enough_and_on_the_gpu_where_it_can_be(data) -> None:
    free = {tag: data.draw(st.integers(0, 20)) for tag in ("a0", "b1", "c2")}
    available = data.draw(
        st.permutations([device_list.device_id(tag, n) for tag in free for n in range(free[tag])])
    )
    must = (
        data.draw(st.lists(st.sampled_from(available), unique=True, max_size=3))
        if available
        else []
    )
    size = data.draw(st.integers(len(must), 30))
    wanted = data.draw(st.sampled_from([(), ("a0",), ("a0", "b1")]))
    chosen = device_list.choose(available, must, size, wanted)
    assert len(chosen) == len(set(chosen)) == min(size, len(available))
    assert set(must) <= set(chosen) <= set(available)
    if not must and wanted and size % len(wanted) == 0:
        for tag in wanted:
            assert sum(text[:2] == tag for text in chosen) >= min(size // len(wanted), free[tag])
