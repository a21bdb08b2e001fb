"""The node offers each GPU by its own health, unless the whole node is blocked."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import REGISTRY
from prometheus_client.samples import Sample

from deviceplugin.cards.node_cards import NodeCards
from deviceplugin.cards.survey import FLUTTER_MIB, Terms, survey
from deviceplugin.driver.interface import (
    NO_MINOR,
    CardEvent,
    PhysicalCard,
    Query,
    Seen,
    UnreadableCard,
)
from deviceplugin.errors import Reason
from deviceplugin.settings import RESERVED_BY_DRIVER
from gpushare.cards.model import Health
from tests.fakes.driver import card
from tests.fakes.node_cards import FIRST, SECOND, TERMS, WAIT, Node, hiccup, lost


def test_without_a_file_the_published_indexes_stay() -> None:
    told = survey(None, [card(7), card(3)], TERMS).inventory
    cards = NodeCards(TERMS, None)
    cards.seen([card(3), card(7)])
    assert cards.is_provisional
    assert cards.saved() is None
    cards.adopt(told)
    assert not cards.is_provisional
    assert {c.uuid: c.index for c in cards.inventory.cards} == {card(7).uuid: 0, card(3).uuid: 1}
    cards.adopt(survey(None, [card(3)], TERMS).inventory)
    assert cards.inventory.by_uuid(card(7).uuid).index == 0


def test_a_missing_gpu_counts_until_file_and_annotation_are_deleted(node: Node) -> None:
    node.cards.adopt(None)
    node.show(SECOND)
    for told in (Node(node.cards.saved()), Node()):
        told.cards.adopt(node.cards.inventory)
        told.show(SECOND)
        first, second = told.cards.inventory.cards
        assert (first.uuid, first.is_healthy, second.index) == (FIRST.uuid, False, 1)
    fresh = Node()
    fresh.cards.adopt(None)
    fresh.show(SECOND)
    (left,) = fresh.cards.inventory.cards
    assert (left.uuid, left.index, left.is_healthy) == (SECOND.uuid, 0, True)


def test_nothing_starts_on_a_gpu_that_the_driver_has_not_confirmed(node: Node) -> None:
    node.cards.adopt(None)
    later = Node(node.cards.saved())
    assert later.offered == [True, True]
    assert later.trouble(FIRST.uuid, at_start=False) is None
    reason, why = later.trouble(FIRST.uuid)
    assert (reason, "not confirmed" in why) == (Reason.CARD_UNHEALTHY, True)
    later.show(FIRST, SECOND)
    assert later.trouble(FIRST.uuid) is None


def test_reserved_memory_that_varies_by_a_mib_is_published_twice_at_most() -> None:
    node = Node(terms=Terms(1, RESERVED_BY_DRIVER))
    versions = set()
    for look in range(20):
        node.show(replace(FIRST, reserved_mib=500 + look % 2))
        versions.add(node.cards.version)
    assert len(versions) <= 2
    assert node.cards.inventory.cards[0].units == FIRST.memory_mib - 501


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=20))
def test_no_more_is_shared_than_the_driver_leaves_and_little_less(reserves) -> None:
    node = Node(terms=Terms(1, RESERVED_BY_DRIVER))
    for reserved in reserves:
        node.show(replace(FIRST, reserved_mib=reserved))
        kept = FIRST.memory_mib - node.cards.inventory.cards[0].units
        assert reserved <= kept < reserved + FLUTTER_MIB


def test_one_gpus_failure_does_not_affect_another(node: Node) -> None:
    node.show(FIRST, lost())
    assert node.offered == [True, False]
    assert node.trouble(FIRST.uuid) is None
    assert node.trouble(SECOND.uuid) == (Reason.CARD_UNHEALTHY, "GPU is lost")


looks = st.sampled_from([SECOND, lost(), hiccup(), None, replace(SECOND, is_mig=True)])
xids = st.sampled_from([0, 0, 31, 48, 79])


@settings(deadline=None)
@given(st.lists(st.tuples(looks, looks, xids, xids, st.floats(0, 100)), max_size=30))
def test_no_history_of_one_gpu_affects_another(history) -> None:
    def offered(*, is_other_ill: bool) -> list[bool]:
        node, found = Node(), []
        node.show(FIRST, SECOND)
        for own, other, own_xid, other_xid, seconds in history:
            shown = [own and replace(own, uuid=FIRST.uuid)]
            events = [CardEvent(FIRST.uuid, own_xid)]
            shown.append(other if is_other_ill else SECOND)
            if is_other_ill:
                events.append(CardEvent(SECOND.uuid, other_xid))
            node.clock.now += seconds
            for event in events:
                node.cards.take(event)
            node.cards.seen([each for each in shown if each], events)
            found.append(node.cards.inventory.by_uuid(FIRST.uuid).is_healthy)
        return found

    assert offered(is_other_ill=True) == offered(is_other_ill=False)


def test_a_gpu_that_has_never_answered_is_a_notice(node: Node) -> None:
    node.show(FIRST, SECOND, UnreadableCard(2, "GPU-odd", "no memory of its own"))
    assert node.cards.notices["GPU-odd"] == (
        "CardUnreadable",
        "GPU GPU-odd cannot be shared: no memory of its own",
    )
    assert node.offered == [True, True]


def test_a_failure_before_the_api_server_answers_is_kept() -> None:
    node = Node()
    node.show(FIRST, SECOND, xid=CardEvent(SECOND.uuid, 79))
    node.cards.adopt(survey(None, [FIRST, SECOND], TERMS).inventory)
    assert node.offered == [True, False]


def test_each_change_of_a_gpu_is_one_line(node: Node, caplog) -> None:
    caplog.set_level("INFO")
    for seen in (lost(), lost(), SECOND, SECOND, replace(SECOND, is_mig=True), SECOND):
        node.show(FIRST, seen)
    lines = [(r.card, r.was, r.now) for r in caplog.records if r.message == "GPU changed"]
    assert lines == [
        (SECOND.uuid, "healthy", "unhealthy"),
        (SECOND.uuid, "unhealthy", "recovering"),
        (SECOND.uuid, "recovering", "mig"),
        (SECOND.uuid, "mig", "healthy"),
    ]


def test_a_suspect_gpu_is_offered_and_nothing_starts_on_it(node: Node) -> None:
    node.show(FIRST, hiccup())
    assert node.offered == [True, True]
    assert node.cards.is_suspicious
    assert node.trouble(SECOND.uuid, at_start=False) is None
    assert node.trouble(SECOND.uuid) == (Reason.CARD_UNHEALTHY, "Unknown Error")
    node.show(FIRST, SECOND)
    assert node.trouble(SECOND.uuid) is None
    for _ in range(4):
        node.show(FIRST, hiccup())
    assert node.offered == [True, False]


def test_a_recovered_gpu_is_offered_after_its_recovery_time(node: Node) -> None:
    node.show(FIRST, lost())
    node.show(FIRST, SECOND, after=5)
    reason, why = node.trouble(SECOND.uuid)
    assert reason is Reason.CARD_UNHEALTHY
    assert "healthy for 60 s" in why
    assert "GPU is lost" in why
    node.show(FIRST, SECOND, after=WAIT - 1)
    assert node.offered == [True, False]
    node.show(FIRST, SECOND, after=1)
    assert node.offered == [True, True]
    assert node.trouble(SECOND.uuid) is None


def test_broken_memory_rows_make_a_gpu_unhealthy(node: Node) -> None:
    node.show(FIRST, replace(SECOND, rows_failed=True))
    assert "replace the GPU" in node.trouble(SECOND.uuid)[1]


def test_a_gpu_in_mig_mode_is_not_offered_until_it_leaves_it(node: Node) -> None:
    node.show(FIRST, replace(SECOND, is_mig=True))
    assert node.offered == [True, False]
    assert "MIG mode" in node.trouble(SECOND.uuid)[1]
    assert not node.cards.notices
    node.show(FIRST, SECOND)
    assert node.offered == [True, True]


def test_a_gpu_in_mig_mode_that_fails_one_probe_is_not_offered_meanwhile(node: Node) -> None:
    node.show(FIRST, replace(SECOND, is_mig=True))
    for unread in (hiccup(), UnreadableCard(1, "", "Unknown Error")):
        node.show(FIRST, unread, xid=CardEvent(SECOND.uuid, 48))
        assert node.offered == [True, False]
        assert "MIG mode" in node.trouble(SECOND.uuid)[1]
    node.show(FIRST, lost())
    assert node.trouble(SECOND.uuid)[1] == "GPU is lost"
    node.show(FIRST, replace(SECOND, is_mig=True))
    node.show(FIRST, SECOND)
    assert node.offered == [True, True]


def test_a_gpu_in_mig_mode_is_not_offered_by_a_plugin_that_starts_before_the_driver(
    node: Node,
) -> None:
    node.cards.adopt(None)
    node.show(FIRST, replace(SECOND, is_mig=True))
    later = Node(node.cards.saved())
    assert later.offered == [True, False]
    assert not later.cards.notices
    later.show(FIRST, SECOND)
    assert later.offered == [True, True]


SILENT = UnreadableCard(1, SECOND.uuid, "no answer", is_silent=True)
BROKEN = replace(SECOND, rows_failed=True)


@pytest.mark.parametrize(
    ("shown", "xid", "state", "reason"),
    [
        (SECOND, 122, "recovering", "xid"),
        (replace(SECOND, recovery_action=1), 0, "unhealthy", "advice"),
        (BROKEN, 0, "unhealthy", "rows"),
        (lost(), 0, "unhealthy", "lost"),
        (hiccup(), 0, "suspect", "unreadable"),
        (SILENT, 0, "suspect", "silent"),
        (None, 0, "gone", "gone"),
        (replace(SECOND, is_mig=True), 0, "mig", ""),
    ],
)
def test_the_metric_has_each_gpus_state_with_the_reason_for_it(
    node: Node, shown: Seen | None, xid: int, state: str, reason: str
) -> None:
    node.show(*(card for card in (FIRST, shown) if card), xid=CardEvent(SECOND.uuid, xid))
    assert metric(SECOND) == {(state, reason)}
    assert metric(FIRST) == {("healthy", "")}
    node.show(FIRST, SECOND)
    if state == "unhealthy":
        assert metric(SECOND) == {("recovering", reason)}
    node.show(FIRST, SECOND, after=2 * WAIT)
    assert metric(SECOND) == {("healthy", "")}
    assert len(series(SECOND)) == 6, "one for each state, none is left of before"


def series(card: PhysicalCard) -> list[Sample]:
    (family,) = (f for f in REGISTRY.collect() if f.name == "gpushare_deviceplugin_card_state")
    return [sample for sample in family.samples if sample.labels["card"] == card.uuid]


def metric(card: PhysicalCard) -> set[tuple[str, str]]:
    return {(s.labels["state"], s.labels["reason"]) for s in series(card) if s.value}


def test_a_silent_driver_stops_all_gpus_and_keeps_their_health(node: Node) -> None:
    node.show(FIRST, lost())
    node.cards.driver_is_silent("no answer")
    assert node.offered == [False, False]
    assert node.trouble(FIRST.uuid, at_start=False) == (Reason.CARD_UNHEALTHY, "no answer")
    node.show(FIRST, SECOND)
    assert node.offered == [True, False]


def test_a_block_rejects_new_pods_and_no_start(node: Node) -> None:
    version = node.cards.version
    node.cards.set_block("identity", "the kubelet cannot be asked")
    node.cards.set_block("identity", "the kubelet cannot be asked")
    assert node.cards.version == version + 1
    assert node.offered == [False, False]
    assert node.cards.why_blocked == "the kubelet cannot be asked"
    assert node.trouble(FIRST.uuid) is None
    node.show(FIRST, lost())
    node.cards.set_block("other", "another reason")
    node.cards.set_block("identity", "")
    assert node.offered == [False, False]
    node.cards.set_block("other", "")
    assert node.offered == [True, False]


def test_unchanged_checks_publish_nothing(node: Node) -> None:
    for seconds in range(100):
        version = node.cards.version
        node.show(FIRST, SECOND, after=seconds)
        assert node.cards.version == version


def test_recovery_continues_after_a_restart_with_the_remaining_seconds(node: Node) -> None:
    node.cards.adopt(None)
    for _ in range(2):
        node.show(FIRST, lost())
        node.show(FIRST, SECOND)
        node.show(FIRST, SECOND, after=2 * WAIT)
    node.show(FIRST, lost())
    node.show(FIRST, SECOND)
    node.show(FIRST, SECOND, after=100)  # of 4 * WAIT
    later = Node(node.cards.saved(exactly=True))
    assert later.offered == [True, False]
    later.show(FIRST, SECOND)
    later.show(FIRST, SECOND, after=4 * WAIT - 101)
    assert later.offered == [True, False]
    later.show(FIRST, SECOND, after=1)
    assert later.offered == [True, True]
    later.show(FIRST, lost())
    later.show(FIRST, SECOND)
    later.show(FIRST, SECOND, after=8 * WAIT - 1)
    assert later.offered == [True, False], "it was the fourth time"


def test_a_gpu_that_fails_again_while_no_plugin_runs_waits_the_whole_time(node: Node) -> None:
    node.cards.adopt(None)
    node.show(FIRST, lost())
    node.show(FIRST, SECOND)
    node.show(FIRST, SECOND, after=WAIT - 1)
    later = Node(node.cards.saved(exactly=True))
    later.show(FIRST, lost())
    later.show(FIRST, SECOND)
    later.show(FIRST, SECOND, after=WAIT - 1)
    assert later.offered == [True, False]
    later.show(FIRST, SECOND, after=1)
    assert later.offered == [True, True]


def test_a_gpu_that_is_missing_at_boot_keeps_its_index(node: Node) -> None:
    node.cards.adopt(None)
    later = Node(node.cards.saved())
    later.show(SECOND)
    assert later.offered == [False, True]
    assert later.trouble(FIRST.uuid)[0] is Reason.CARD_GONE
    assert Node(later.cards.saved()).offered == [False, True], "and after another restart"


def test_without_a_file_a_published_unhealthy_gpu_waits_for_the_driver() -> None:
    told = survey(None, [FIRST, SECOND], TERMS).inventory
    ill = tuple(replace(c, health="unhealthy") for c in told.cards)
    node = Node()
    node.cards.adopt(replace(told, cards=ill))
    assert node.offered == [False, False]
    node.show(FIRST, SECOND)
    assert node.offered == [True, True]


def test_without_a_file_a_gpu_that_is_still_unhealthy_has_its_reason() -> None:
    told = survey(None, [FIRST, SECOND], TERMS).inventory
    ill = tuple(replace(c, health=Health.UNHEALTHY) for c in told.cards)
    node = Node()
    node.cards.adopt(replace(told, cards=ill))
    node.show(FIRST, lost())
    assert node.trouble(SECOND.uuid)[1] == "GPU is lost"
    node.show(FIRST, SECOND, after=1)
    assert node.offered == [True, False]
    node.show(FIRST, SECOND, after=WAIT)
    assert node.offered == [True, True]


def test_many_units_are_a_notice_with_the_unit_that_avoids_it() -> None:
    node = Node(None, Terms(1))
    node.show(card(0, 81_920), card(1, 81_920))
    reason, text = node.cards.notices["DeviceListLarge"]
    assert (reason, "--memory-unit=2MiB" in text) == ("DeviceListLarge", True)
    assert "--memory-unit=2MiB" in node.cards.notices["CardUnitsMany"][1]
    assert not node.cards.refusal
    small = Node(None, Terms(1))
    small.show(card(0, 70_000), card(1, 30_000))
    assert not small.cards.notices


def test_a_replaced_gpu_never_makes_the_list_too_long() -> None:
    node = Node(None, Terms(1))
    large = [card(number, 81_920) for number in range(3)]
    node.show(large[0], large[1])
    node.show(large[0], large[2])
    assert not node.cards.refusal
    assert len(node.cards.message) == 2 * 81_920 * 18
    told = [(c.index, c.units, c.is_healthy) for c in node.cards.inventory.cards]
    assert told == [(0, 81_920, True), (1, 81_920, False), (2, 81_920, True)]
    node.show(*large)
    assert "--memory-unit=2MiB" in node.cards.refusal, "all three are too many"


def test_a_query_that_fails_is_named_once_it_has_failed_several_times(node: Node) -> None:
    odd = replace(SECOND, minor=NO_MINOR, failed={Query.MINOR: "Unknown Error"})
    about = f"{SECOND.uuid} {Query.MINOR}"
    for _ in range(3):
        node.show(FIRST, odd)
        assert about not in node.cards.notices
    node.show(FIRST, odd)
    reason, text = node.cards.notices[about]
    assert reason == "CardQueryFails"
    assert "nvmlDeviceGetMinorNumber fails (Unknown Error)" in text
    assert node.offered == [True, True]
    node.show(FIRST, SECOND)
    assert about not in node.cards.notices


def test_what_a_failed_query_did_not_show_is_as_last_known() -> None:
    node = Node(terms=Terms(1, RESERVED_BY_DRIVER))
    node.show(replace(FIRST, reserved_mib=500), SECOND)
    before = node.cards.inventory
    failed = dict.fromkeys((Query.MINOR, Query.MODEL, Query.RESERVED, Query.MIG), "odd")
    odd = replace(FIRST, minor=NO_MINOR, model="", reserved_mib=None, failed=failed)
    versions = set()
    for _ in range(3):
        node.show(odd, SECOND)
        versions.add(node.cards.version)
    assert node.cards.inventory == before
    assert len(versions) == 1, "nothing to tell the kubelet"
    node.show(replace(FIRST, is_mig=True), SECOND)
    node.show(odd, SECOND)
    assert node.offered == [False, True], "it is still in MIG mode"
