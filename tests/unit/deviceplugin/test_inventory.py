"""The inventory: an index and a tag belong to a UUID for ever."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deviceplugin.driver import PhysicalCard, UnreadableCard
from deviceplugin.inventory import BY_DRIVER, Terms, restored, survey
from deviceplugin.node_cards import NodeCards
from deviceplugin.slots import SlotFile
from gpushare.cards import Inventory
from tests.fakes.driver import card

TERMS = Terms(unit_mib=1)
machines = st.lists(st.sets(st.integers(0, 6)), max_size=8)


@settings(deadline=None)
@given(machines)
def test_an_index_and_a_tag_never_pass_to_another_card(history: list[set[int]]) -> None:
    given_index: dict[int, str] = {}
    given_tag: dict[str, str] = {}
    inventory: Inventory | None = None
    for numbers in history:
        inventory = survey(inventory, [card(n) for n in sorted(numbers)], TERMS).inventory
        for each in inventory.cards:
            assert given_index.setdefault(each.index, each.uuid) == each.uuid
            assert given_tag.setdefault(each.tag, each.uuid) == each.uuid
            assert each.is_healthy == (each.uuid in {card(n).uuid for n in numbers})
        assert len({each.index for each in inventory.cards}) == len(inventory.cards)


def test_cards_get_indexes_in_the_drivers_order() -> None:
    shown = [card(5), card(3), card(9)]
    inventory = survey(None, shown, TERMS).inventory
    assert [(c.index, c.uuid) for c in inventory.cards] == [
        (n, each.uuid) for n, each in enumerate(shown)
    ]


def test_a_lost_card_stays_as_unhealthy_with_a_reason_and_others_are_untouched() -> None:
    before = survey(None, [card(0), card(1)], TERMS).inventory
    lost = survey(before, [card(0), UnreadableCard(1, "", "GPU is lost")], TERMS)
    assert [c.is_healthy for c in lost.inventory.cards] == [True, False]
    assert lost.reasons == {card(1).uuid: "GPU is lost"}
    assert lost.inventory.cards[1].units == before.cards[1].units
    back = survey(lost.inventory, [card(0), card(1)], TERMS)
    assert back.inventory == before
    assert not back.reasons


@pytest.mark.parametrize(
    ("reserved", "units"), [(BY_DRIVER, 15_776), (0, 16_276), (1000, 15_276), (99_999, 0)]
)
def test_what_the_driver_keeps_is_not_shared(reserved: int, units: int) -> None:
    shown = PhysicalCard("GPU-0", 0, "m", 16_276, reserved_mib=500)
    (found,) = survey(None, [shown], Terms(1, reserved)).inventory.cards
    assert found.units == units
    assert found.memory_mib == 16_276


def test_a_driver_that_does_not_tell_what_it_keeps_is_remarked_on() -> None:
    shown = PhysicalCard("GPU-0", 0, "m", 16_276, reserved_mib=None)
    found = survey(None, [shown], Terms(1))
    assert found.inventory.cards[0].units == 16_276
    assert "--reserved" in found.remarks[0]
    assert not survey(None, [shown], Terms(1, reserved_mib=100)).remarks


def test_a_card_in_mig_mode_is_seen_and_not_shared() -> None:
    plain = survey(None, [card(0), card(1, is_mig=True)], TERMS)
    assert [c.uuid for c in plain.inventory.cards] == [card(0).uuid]
    assert plain.remarks == (f"card {card(1).uuid} is in MIG mode, and such cards are not shared",)
    before = survey(None, [card(0), card(1)], TERMS).inventory
    switched = survey(before, [card(0), card(1, is_mig=True)], TERMS)
    assert "MIG" in switched.reasons[card(1).uuid]


def test_cards_of_different_sizes_keep_their_own() -> None:
    cards = survey(None, [card(0, 16_276), card(1, 81_920)], Terms(1024)).inventory.cards
    assert [c.units for c in cards] == [15, 80]


def test_another_unit_counts_the_same_cards_anew() -> None:
    before = survey(None, [card(0, 81_920)], Terms(1024)).inventory
    (kept,) = restored(before, Terms(256)).inventory.cards
    assert kept.units == 320


def test_the_inventory_survives_on_disk(tmp_path) -> None:
    inventory = survey(None, [card(0), card(1)], TERMS).inventory
    file = SlotFile(tmp_path / "state")
    assert file.read() is None
    file.write(inventory)
    assert file.read() == inventory


@pytest.mark.parametrize("content", ["", "{", "null", '{"version":99}', "\udcff"])
def test_a_broken_file_is_no_inventory(tmp_path, content: str) -> None:
    (tmp_path / "inventory.json").write_bytes(content.encode(errors="surrogateescape"))
    assert SlotFile(tmp_path).read() is None


def test_without_a_file_the_indexes_that_the_node_was_told_hold() -> None:
    told = survey(None, [card(7), card(3)], TERMS).inventory
    cards = NodeCards(TERMS, None)
    cards.seen([card(3), card(7)])
    assert cards.is_provisional
    cards.adopt(told)
    assert not cards.is_provisional
    assert {c.uuid: c.index for c in cards.inventory.cards} == {card(7).uuid: 0, card(3).uuid: 1}
    cards.adopt(survey(None, [card(3)], TERMS).inventory)
    assert cards.inventory.by_uuid(card(7).uuid).index == 0


def test_nothing_starts_on_a_card_that_the_driver_has_not_confirmed() -> None:
    before = survey(None, [card(0)], TERMS).inventory
    cards = NodeCards(TERMS, before)
    (known,) = cards.inventory.cards
    assert not cards.why_unhealthy(known)
    assert "not confirmed" in cards.why_unusable(known)
    cards.seen([card(0)])
    assert not cards.why_unusable(known)
