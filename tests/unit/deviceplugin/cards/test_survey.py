"""In the inventory an index and a tag belong to a UUID forever."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deviceplugin.cards.device_list import device_id, parse_device_id
from deviceplugin.cards.rules import NO_FAULT, HealthCheckResult, HealthReason
from deviceplugin.cards.survey import Terms, restored, survey
from deviceplugin.driver.interface import PhysicalCard, UnreadableCard
from deviceplugin.settings import RESERVED_BY_DRIVER
from gpushare.cards.model import Inventory
from gpushare.cards.reserve import parse_reserve
from tests.fakes.driver import card

TERMS = Terms(unit_mib=1)
machines = st.lists(st.sets(st.integers(0, 6)), max_size=8)


@settings(deadline=None)
@given(machines)
def test_an_index_and_a_tag_never_pass_to_another_gpu(history: list[set[int]]) -> None:
    given_index: dict[int, str] = {}
    given_tag: dict[str, str] = {}
    inventory: Inventory | None = None
    for numbers in history:
        found = survey(inventory, [card(n) for n in sorted(numbers)], TERMS)
        inventory = found.inventory
        for each in inventory.cards:
            assert given_index.setdefault(each.index, each.uuid) == each.uuid
            assert given_tag.setdefault(each.tag, each.uuid) == each.uuid
            is_there = each.uuid in {card(n).uuid for n in numbers}
            assert found.findings[each.uuid].is_gone != is_there
        assert len({each.index for each in inventory.cards}) == len(inventory.cards)


def test_gpus_get_indexes_in_the_drivers_order() -> None:
    shown = [card(5), card(3), card(9)]
    inventory = survey(None, shown, TERMS).inventory
    assert [(c.index, c.uuid) for c in inventory.cards] == [
        (n, each.uuid) for n, each in enumerate(shown)
    ]


def test_a_missing_gpu_keeps_its_index_and_does_not_affect_others() -> None:
    before = survey(None, [card(0), card(1)], TERMS).inventory
    gone = survey(before, [card(0)], TERMS)
    assert gone.inventory == before
    assert gone.findings[card(0).uuid] == NO_FAULT
    assert gone.findings[card(1).uuid] == HealthCheckResult(
        "the driver no longer shows it",
        is_definite=True,
        is_gone=True,
        reason=HealthReason.GONE,
        shows_reset=True,
    )


def test_an_unreadable_gpu_without_uuid_counts_as_the_missing_one() -> None:
    before = survey(None, [card(0), card(1)], TERMS).inventory
    lost = survey(before, [card(0), UnreadableCard(1, "", "GPU is lost", True)], TERMS)
    assert lost.findings[card(1).uuid] == HealthCheckResult(
        "GPU is lost", is_definite=True, reason=HealthReason.LOST, shows_reset=True
    )
    assert not lost.unlisted


def test_a_gpu_that_has_never_answered_is_named_and_has_no_place() -> None:
    odd = UnreadableCard(1, "GPU-odd", "no memory of its own")
    found = survey(None, [card(0), odd, UnreadableCard(2, "", "Unknown Error")], TERMS)
    assert [c.uuid for c in found.inventory.cards] == [card(0).uuid]
    assert found.unlisted == {
        "GPU-odd": "no memory of its own",
        "the driver's number 2": "Unknown Error",
    }


def test_gpus_with_the_same_uuid_are_reported_and_not_shared() -> None:
    twin = replace(card(0), minor=7)
    fresh = survey(None, [card(0), twin, card(1)], TERMS)
    assert [each.uuid for each in fresh.inventory.cards] == [card(1).uuid]
    assert "2 GPUs with this UUID (minor numbers 0, 7)" in fresh.unlisted[card(0).uuid]
    before = survey(None, [card(0), card(1)], TERMS).inventory
    after = survey(before, [card(1), card(0), twin], TERMS)
    assert after.inventory == before
    found = after.findings[card(0).uuid]
    assert (found.is_definite, found.is_gone) == (True, False)
    assert found.reason is HealthReason.DUPLICATE
    assert after.findings[card(1).uuid] == NO_FAULT


def test_a_gpu_that_was_swapped_gets_a_new_index_and_tag() -> None:
    before = survey(None, [card(0), card(1)], TERMS).inventory
    swapped = survey(before, [card(0), card(7)], TERMS)
    assert [c.uuid for c in swapped.inventory.cards] == [card(n).uuid for n in (0, 1, 7)]
    assert [c.index for c in swapped.inventory.cards] == [0, 1, 2]
    assert len({c.tag for c in swapped.inventory.cards}) == 3
    assert swapped.findings[card(1).uuid].is_gone


@given(st.lists(st.sampled_from(["aa", "ab", "", "a", "abc", "ä!", "-1"]), min_size=3, max_size=3))
def test_invalid_and_duplicate_tags_are_replaced(tags) -> None:
    before = survey(None, [card(n) for n in range(3)], TERMS).inventory
    told = [replace(each, tag=tag) for each, tag in zip(before.cards, tags, strict=True)]
    found = restored(replace(before, cards=tuple(told)), TERMS).inventory
    assert len({each.tag for each in found.cards}) == 3
    assert all(parse_device_id(device_id(each.tag, 0)) == (each.tag, 0) for each in found.cards)
    kept = [tag for tag in dict.fromkeys(tags) if tag in {"aa", "ab"}]
    assert {*kept} <= {each.tag for each in found.cards}
    assert [each.index for each in found.cards] == [0, 1, 2]
    again = restored(found, TERMS).inventory
    assert again == found


def test_minor_numbers_may_change_and_indexes_stay() -> None:
    before = survey(None, [card(0), card(1)], TERMS).inventory
    moved = [replace(card(1), minor=0), replace(card(0), minor=1)]
    after = survey(before, moved, TERMS).inventory
    assert [(c.index, c.uuid, c.minor) for c in after.cards] == [
        (0, card(0).uuid, 1),
        (1, card(1).uuid, 0),
    ]


@pytest.mark.parametrize(
    ("reserved", "units"), [(RESERVED_BY_DRIVER, 15_776), (0, 16_276), (1000, 15_276), (99_999, 0)]
)
def test_reserved_memory_is_not_shared(reserved: int, units: int) -> None:
    shown = PhysicalCard("GPU-0", 0, "m", 16_276, reserved_mib=500)
    (found,) = survey(None, [shown], Terms(1, reserved)).inventory.cards
    assert found.units == units
    assert found.memory_mib == 16_276


@pytest.mark.parametrize(("text", "units"), [("512Mi", 15_264), ("3%", 15_287), ("0", 15_776)])
def test_a_reserve_is_kept_unshared_beside_what_the_driver_reserves(text: str, units: int) -> None:
    shown = PhysicalCard("GPU-0", 0, "m", 16_276, reserved_mib=500)
    terms = Terms(1, reserve=parse_reserve(text))
    found = survey(None, [shown], terms).inventory
    assert (found.cards[0].units, found.reserve) == (units, terms.reserve.text)


def test_a_driver_that_reports_no_reserved_memory_is_a_remark() -> None:
    shown = PhysicalCard("GPU-0", 0, "m", 16_276, reserved_mib=None)
    found = survey(None, [shown], Terms(1))
    assert found.inventory.cards[0].units == 16_276
    assert "--reserved" in found.remarks[0]
    assert not survey(None, [shown], Terms(1, reserved_mib=100)).remarks


def test_a_gpu_in_mig_mode_is_seen_and_has_nothing_to_share() -> None:
    found = survey(None, [card(0), card(1, is_mig=True)], TERMS)
    assert [(c.uuid, c.units) for c in found.inventory.cards] == [
        (card(0).uuid, 16_276),
        (card(1).uuid, 0),
    ]
    assert found.mig == {card(1).uuid}
    assert found.remarks == (f"GPU {card(1).uuid} is in MIG mode, and such GPUs are not shared",)


def test_a_gpu_that_enters_mig_mode_keeps_its_units() -> None:
    before = survey(None, [card(0), card(1)], TERMS).inventory
    switched = survey(before, [card(0), card(1, is_mig=True)], TERMS)
    assert switched.inventory == before
    assert card(1).uuid not in switched.findings
    back = survey(survey(None, [card(0, is_mig=True)], TERMS).inventory, [card(0)], TERMS)
    assert back.inventory.cards[0].units == 16_276


def test_gpus_of_different_sizes_keep_their_own() -> None:
    cards = survey(None, [card(0, 16_276), card(1, 81_920)], Terms(1024)).inventory.cards
    assert [c.units for c in cards] == [15, 80]


def test_another_unit_changes_the_number_of_units() -> None:
    before = survey(None, [card(0, 81_920)], Terms(1024)).inventory
    (kept,) = restored(before, Terms(256)).inventory.cards
    assert kept.units == 320
