"""An XID that needs a reset keeps a GPU back until that has happened."""

from dataclasses import replace

import pytest

from deviceplugin.cards.rules import MAX_WAIT_SECONDS
from deviceplugin.cards.state_file import decode, encode
from deviceplugin.driver.interface import CardEvent, Seen
from tests.fakes.node_cards import FIRST, SECOND, Node, lost


@pytest.mark.parametrize(
    ("xid", "action", "is_offered"),
    [
        (31, 0, True),
        (31, None, True),
        (94, None, True),
        (31, 1, False),
        (48, 0, True),
        (48, None, False),
        (109, 0, True),
        (109, None, True),
        (119, None, False),
        (109, 2, False),
        (79, 0, False),
        (79, None, False),
    ],
)
def test_an_xid_is_judged_by_the_drivers_advice_else_by_the_catalog(
    node: Node, xid: int, action: int | None, is_offered: bool
) -> None:
    shown = replace(SECOND, recovery_action=action)
    node.show(FIRST, shown, xid=CardEvent(SECOND.uuid, xid))
    assert node.offered == [True, is_offered]
    if not is_offered:
        (_, text) = node.cards.notices[SECOND.uuid]
        assert f"XID {xid}" in text


def test_the_text_names_xid_and_advice(node: Node) -> None:
    shown = replace(SECOND, recovery_action=1)
    node.show(FIRST, shown, xid=CardEvent(SECOND.uuid, 119))
    _, why = node.trouble(SECOND.uuid)
    assert why == "XID 119: the driver advises to reset the GPU"
    node.show(FIRST, lost())
    assert node.trouble(SECOND.uuid)[1] == why, "the first cause says more than what follows it"


def test_an_xid_after_the_advice_is_still_reported(node: Node, caplog) -> None:
    shown = replace(SECOND, recovery_action=1)
    node.show(FIRST, shown)
    node.show(FIRST, shown, xid=CardEvent(SECOND.uuid, 119))
    node.show(FIRST, shown, xid=CardEvent(SECOND.uuid, 48))
    why = "XID 119: the driver advises to reset the GPU"
    assert node.trouble(SECOND.uuid)[1] == why
    assert [r.why for r in caplog.records if r.message == "GPU changed"][1:] == [why]


def test_a_gpu_that_fell_off_the_bus_needs_no_check(node: Node) -> None:
    assert node.cards.take(CardEvent(SECOND.uuid, 79))
    assert node.offered == [True, False]
    assert not node.cards.take(CardEvent(FIRST.uuid, 48))
    assert not node.cards.take(CardEvent("GPU-unknown", 79))
    assert node.offered == [True, False]


def test_a_gpu_that_fell_off_the_bus_before_the_first_check_needs_none(node: Node) -> None:
    node.cards.adopt(None)
    later = Node(node.cards.saved())
    assert later.cards.take(CardEvent(SECOND.uuid, 79))
    assert later.offered == [True, False]
    assert not Node().cards.take(CardEvent(SECOND.uuid, 79)), "no card is known yet"


def restarted(node: Node, load: str = "boot-1/") -> Node:
    """The node after its program was started again, with what was kept on disk."""
    node.cards.adopt(None)
    later = Node(decode(encode(node.cards.saved())), load=load)
    later.clock.now = node.clock.now
    return later


def offered_in_the_end(node: Node, *seen: Seen) -> bool:
    for _ in range(3):
        node.show(*(seen or (FIRST, SECOND)), after=2 * MAX_WAIT_SECONDS)
    return node.offered[1]


@pytest.fixture
def ill(node: Node) -> Node:
    node.show(FIRST, SECOND, xid=CardEvent(SECOND.uuid, 48))
    return node


def test_an_xid_that_needs_a_reset_outlives_good_checks_and_restarts(ill: Node) -> None:
    assert not offered_in_the_end(ill)
    reason, text = ill.cards.notices[SECOND.uuid]
    assert reason == "CardUnhealthy"
    assert "XID 48: double bit ECC error" in text
    assert "cordoned and uncordoned" in text
    later = restarted(restarted(ill))
    assert not offered_in_the_end(later)
    assert later.offered == [True, False]


@pytest.mark.parametrize("load", ["boot-2/", "boot-1/77"])
def test_a_new_boot_and_a_new_load_of_the_driver_count_as_a_reset(ill: Node, load: str) -> None:
    later = restarted(ill, load)
    later.show(FIRST, SECOND)
    assert later.offered == [True, False], "good checks are needed all the same"
    assert offered_in_the_end(later)


def test_a_driver_that_is_loaded_again_under_the_program_counts_as_a_reset(ill: Node) -> None:
    ill.load = "boot-1/78"
    assert offered_in_the_end(ill)


def test_an_administrator_says_that_a_gpu_was_reset_by_uncordoning_it(ill: Node) -> None:
    ill.cards.set_cordoned(set())
    ill.cards.set_cordoned({FIRST.uuid})
    ill.cards.set_cordoned(set())
    assert not offered_in_the_end(ill), "it was another GPU"
    ill.cards.set_cordoned({SECOND.uuid})
    assert not offered_in_the_end(ill)
    ill.cards.set_cordoned(set())
    assert offered_in_the_end(ill)


def test_what_only_a_tool_has_cordoned_says_nothing_about_a_reset(ill: Node) -> None:
    ill.cards.set_cordoned({SECOND.uuid}, by_people=set())
    ill.cards.set_cordoned(set())
    assert not offered_in_the_end(ill)
    ill.cards.set_cordoned({SECOND.uuid})
    ill.cards.set_cordoned({SECOND.uuid}, by_people=set())
    ill.cards.set_cordoned(set())
    assert not offered_in_the_end(ill)


def test_a_gpu_may_be_uncordoned_while_no_plugin_runs(ill: Node) -> None:
    ill.cards.set_cordoned({SECOND.uuid})
    still, later = restarted(ill), restarted(ill)
    still.cards.set_cordoned({SECOND.uuid})
    assert not offered_in_the_end(still)
    later.cards.set_cordoned(set())
    assert offered_in_the_end(later)


def test_a_node_that_is_deleted_uncordons_nothing(ill: Node) -> None:
    ill.cards.set_cordoned({SECOND.uuid})
    ill.cards.set_cordoned(None)
    ill.cards.set_cordoned(set())
    assert not offered_in_the_end(ill)
