"""One record per pod: parsed once per version, reported sparingly, forgotten whole, and bounded."""

from collections.abc import Callable
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.decisions import attempts, pod_records
from extender.decisions.callers import Callers
from extender.decisions.pod_records import PodRecords
from extender.decisions.scheduling import how_many
from gpushare.annotations import pod_annotations
from gpushare.answers.explain import Asked
from gpushare.contract import (
    ANNOTATION_CARDS,
    ANNOTATION_CARDS_NOT,
    GATE_ADMISSION,
    LABEL_CARD_COUNT,
)
from gpushare.errors import RequestError
from gpushare.objects.model import Pod, PodCondition, SchedulingGate
from gpushare.placement import verdict
from gpushare.placement.card_choice import FreeCard
from gpushare.placement.rank import Policies
from tests.builders import cards, pod
from tests.unit.extender.scripted import changed

FULL, SMALL = "no room", "too small"
CALLERS = Callers(["default-scheduler"])


def records() -> PodRecords:
    return PodRecords(Policies(), lambda _: None)


@pytest.fixture
def kept() -> PodRecords:
    return records()


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The name of each pod whose amounts are read."""
    found: list[str] = []
    real = pod_annotations.containers_of

    def containers_of(each: Pod) -> object:
        found.append(each.metadata.name)
        return real(each)

    monkeypatch.setattr(pod_annotations, "containers_of", containers_of)
    return found


def copy(of: Pod, **fields: object) -> Pod:
    """The same pod, decoded a second time, with other fields in its metadata."""
    return changed(msgspec.json.decode(msgspec.json.encode(of), type=Pod), fields)


def test_amounts_are_parsed_once_from_arrival_to_the_bound_pod(kept, parsed: list[str]) -> None:
    kept.update(pod("a", 6))
    for version in ("2", "3"):
        assert kept.request_of(copy(pod("a", 6))).units == 6
        kept.update(copy(pod("a", 6), resource_version=version))
    kept.update(pod("a", 6, node="n", annotations={ANNOTATION_CARDS: "GPU-0"}))
    assert kept.get("uid-a").units == 6
    assert parsed == ["a"]


@pytest.mark.parametrize(
    "changed",
    [
        pod("a", 8),
        pod("a", 6, labels={LABEL_CARD_COUNT: "2"}),
        pod("a", 6, annotations={ANNOTATION_CARDS_NOT: "GPU-0"}),
        pod("a", "many"),
        pod("b", 6, uid="unknown"),
    ],
    ids=["units", "label", "wish", "unreadable", "another pod"],
)
def test_what_kube_scheduler_sends_counts_where_the_watch_is_behind(kept, changed: Pod) -> None:
    kept.update(pod("a", 6))
    assert outcome(kept.request_of, changed) == outcome(
        lambda each: verdict.request_of(each, Policies()), changed
    )


def outcome(read: Callable[[Pod], object], of: Pod) -> object:
    try:
        return read(of)
    except RequestError as err:
        return str(err)


def test_a_refusal_is_parsed_once_too_and_raised_each_time(kept, parsed: list[str]) -> None:
    kept.update(pod("a", "many"))
    parsed.clear()
    for _ in range(2):
        with pytest.raises(RequestError, match="main"):
            kept.request_of(pod("a", "many"))
    assert parsed == []


def test_pods_without_a_node_are_pending_until_they_have_one_or_are_gone(kept) -> None:
    kept.update(pod("a", 6))
    kept.update(pod("b", 2))
    assert (len(kept.pending), kept.least_pending_units(CALLERS)) == (2, 2)
    kept.update(pod("b", 2, node="n"))
    assert (len(kept.pending), kept.least_pending_units(CALLERS)) == (1, 6)
    kept.forget("uid-a")
    assert (len(kept.pending), kept.least_pending_units(CALLERS)) == (0, 0)


def test_a_pod_with_a_scheduling_gate_is_not_pending_yet(kept) -> None:
    free = pod("a", 6)
    kept.update(changed(free, spec={"scheduling_gates": (SchedulingGate("wait"),)}))
    assert not kept.pending
    kept.update(free)
    assert len(kept.pending) == 1


def test_a_pod_that_no_node_can_ever_grant_is_pending_and_never_the_smallest(kept) -> None:
    kept.update(pod("a", "many"))
    assert (len(kept.pending), kept.least_pending_units(CALLERS)) == (1, 0)
    kept.update(pod("b", 9))
    assert (len(kept.pending), kept.least_pending_units(CALLERS)) == (2, 9)


def test_the_smallest_request_is_of_a_pod_for_which_kube_scheduler_should_ask(kept) -> None:
    """A node selector that matches no node, and a misspelled scheduler, are mistakes of authors."""
    condition = PodCondition("PodScheduled", "False", "Unschedulable", "0/3 nodes are available")
    kept.update(changed(pod("a", 2), status={"conditions": (condition,)}))
    kept.update(changed(pod("b", 3), spec={"scheduler_name": "defualt-scheduler"}))
    assert (len(kept.pending), kept.least_pending_units(CALLERS)) == (2, 0)
    kept.update(pod("c", 9))
    assert kept.least_pending_units(CALLERS) == 9
    kept.answer("uid-a", 1, [FULL], 0.0)
    assert kept.least_pending_units(CALLERS) == 2


def test_the_last_answer_counts_and_pending_begins_with_the_first_rejection(kept) -> None:
    kept.answer("a", 3, [FULL, FULL, SMALL], 10.0)
    kept.answer("a", 2, [FULL, FULL], 15.0)
    assert kept.get("a").asked == Asked(10.0, 15.0, 2, {FULL: 2})
    kept.answer("a", 4, [], 16.0)
    assert kept.get("a").asked == Asked(10.0, 16.0, 4, {})
    kept.answer("a", 1, [FULL], 20.0)
    assert kept.get("a").asked.since == 20.0


def test_a_pod_that_fits_at_once_leaves_nothing_behind(kept) -> None:
    kept.answer("a", 1000, [], 1.0)
    assert kept.get("a") is None


def test_a_pod_is_reported_once_for_each_set_of_reasons_whatever_their_numbers() -> None:
    kept, reported = records(), []
    for second in range(1000):
        reasons = [FULL] * (second % 7 + 1) + [SMALL] * (second >= 500)
        kept.answer("a", 9, reasons, float(second))
        reported += [
            (second, set(each.reported)) for each in kept.take_unreported(float(second), 5)
        ]
    assert reported == [(2, {FULL}), (500, {FULL, SMALL})]


@pytest.mark.parametrize("by", ["the extender", "kube-scheduler itself"])
def test_a_pod_that_stays_pending_always_has_an_event(kept, by: str) -> None:
    says = "0/1 nodes are available: 1 Insufficient aliyun.com/gpu-mem."
    condition = PodCondition("PodScheduled", "False", "Unschedulable", says)
    rejected = pod("a", 5)
    rejected = msgspec.structs.replace(
        rejected, status=msgspec.structs.replace(rejected.status, conditions=(condition,))
    )
    reported = []
    for minute in range(180):
        if by == "the extender":
            kept.answer("uid-a", 1, [FULL], 60.0 * minute)
        elif not minute:
            kept.update(rejected)
        reported += [minute for _ in kept.take_unreported(60.0 * minute + 5, 5)]
    assert len(reported) == 6
    assert all(later - one < 60 for one, later in pairwise([*reported, 180]))
    kept.answer("uid-a", 1, [], 11_000.0)
    kept.update(pod("a", 5, node="n"))
    assert list(kept.take_unreported(20_000.0, 5)) == []


def test_reasons_that_come_and_go_are_reported_once_a_minute() -> None:
    kept, reported = records(), []
    for second in range(300):
        kept.answer("a", 1, [FULL if second % 2 else SMALL], float(second))
        reported += [second for _ in kept.take_unreported(float(second), 5)]
    assert len(reported) <= 300 / pod_records.AGAIN_SECONDS + 1
    assert all(later - one >= pod_records.AGAIN_SECONDS for one, later in pairwise(reported))


def test_a_pod_that_is_rejected_only_for_a_moment_is_not_reported(kept) -> None:
    kept.answer("a", 1, [FULL], 0.0)
    assert list(kept.take_unreported(1.9, 5)) == []
    kept.answer("a", 1, [], 2.0)
    assert list(kept.take_unreported(9.0, 5)) == []
    kept.answer("b", 1, [FULL], 9.0)
    kept.forget("b")
    assert list(kept.take_unreported(20.0, 5)) == []


def test_a_thousand_rejected_pods_are_reported_a_few_at_a_time_and_none_is_left_out() -> None:
    kept, reported = records(), []
    for number in range(1000):
        kept.answer(f"p{number}", 1, [FULL], 0.0)
    kept.answer("late", 1, [FULL], 100.0)
    for second in range(2, 203):
        now = list(kept.take_unreported(float(second), 5))
        assert len(now) <= 5
        reported += [record.uid for record in now]
    assert sorted(reported) == sorted([*(f"p{number}" for number in range(1000)), "late"])


def test_a_pod_that_fits_by_now_is_not_counted_among_the_rejected(kept) -> None:
    kept.answer("a", 1, [FULL], 0.0)
    kept.answer("b", 1, [FULL], 0.0)
    kept.answer("a", 1, [], 1.0)
    assert kept.rejected == 1


def test_answers_have_a_bound_and_the_latest_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_records, "MAX_ASKED", 20)
    kept = records()
    kept.update(pod("known", 1))
    kept.answer("uid-known", 1, [FULL], 0.0)
    for number in range(30):
        kept.answer(f"p{number}", 1, [FULL], float(number))
        kept.answer("p0", 1, [FULL], float(number))
    assert kept.rejected == kept.reasons[FULL] == 20
    assert kept.get("p0").asked is not None
    assert kept.get("p1") is None
    assert kept.get("uid-known").asked is None
    assert len(kept.uids()) == 21


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.lists(st.sampled_from([FULL, SMALL]), max_size=3),
            st.sampled_from(["ask", "forget", "report"]),
            st.integers(0, 40),
        ),
        max_size=60,
    )
)
def test_a_report_says_what_is_so_and_what_was_not_reported(steps) -> None:
    kept, now, last, reported = records(), 0.0, {}, {}
    for uid, texts, what, seconds in steps:
        now += seconds
        if what == "ask":
            kept.answer(uid, len(texts), texts, now)
            last[uid] = texts
        elif what == "forget":
            kept.forget(uid)
            last.pop(uid, None)
            reported.pop(uid, None)
        else:
            for record in kept.take_unreported(now, 2):
                assert set(record.asked.reasons) == set(last[record.uid]) != set()
                was, at = reported.get(record.uid, (set(), 0.0))
                is_old = now - at >= pod_records.RENEWED_SECONDS
                assert was != set(record.asked.reasons) or is_old
                reported[record.uid] = set(record.asked.reasons), now


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.none() | st.lists(st.sampled_from([FULL, SMALL])),
        ),
        max_size=30,
    )
)
def test_each_reason_counts_the_pods_that_are_rejected_for_it_now(events) -> None:
    kept = records()
    for now, (uid, texts) in enumerate(events):
        if texts is None:
            kept.forget(uid)
        else:
            kept.answer(uid, len(texts), texts, float(now))
    found = [kept.get(uid) for uid in "abc"]
    now = [set(each.asked.reasons) for each in found if each is not None]
    assert kept.reasons == {
        text: count for text in (FULL, SMALL) if (count := sum(text in each for each in now))
    }


def test_nodes_of_a_failed_attempt_are_remembered_at_the_next(kept) -> None:
    assert kept.begin_attempt("a", 0).count == 0
    kept.offer("a", ["n1", "n2"], 0)
    assert list(kept.attempts("a").tried) == []
    assert kept.begin_attempt("a", 1).count == 1
    assert dict(kept.attempts("a").tried) == {"n1": 2, "n2": 1}
    kept.offer("a", ["n3", "n1"], 1)
    assert kept.begin_attempt("a", 2).count == 2
    assert dict(kept.attempts("a").tried) == {"n1": 2, "n2": 1, "n3": 3}
    assert kept.begin_attempt("b", 2).count == 0


def test_an_attempt_that_was_offered_nothing_does_not_count_as_failed(kept) -> None:
    assert [kept.begin_attempt("a", at).count for at in range(5)] == [0] * 5


def test_more_nodes_are_offered_after_failed_attempts_and_all_in_the_end() -> None:
    assert [how_many(8, failed) for failed in range(5)] == [8, 8, 32, 0, 0]
    assert how_many(0, 0) == 0


def test_attempts_of_a_pod_that_is_bound_or_long_silent_are_forgotten(kept) -> None:
    for uid in ("bound", "silent", "late"):
        kept.offer(uid, ["n"], 0 if uid != "late" else 500)
    kept.drop_attempts("bound")
    assert kept.begin_attempt("bound", 1).count == 0
    assert kept.begin_attempt("silent", attempts.REMEMBERED_SECONDS + 1).count == 0
    assert kept.begin_attempt("late", attempts.REMEMBERED_SECONDS + 1).count == 1
    assert kept.uids() == ["late"]


def test_attempts_are_bounded_in_pods_and_in_nodes_of_one_pod(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pod_records, "MAX_OFFERED", 10)
    kept = records()
    for number in range(50):
        kept.begin_attempt(f"u{number}", 0)
        kept.offer(f"u{number}", ["n"], 0)
    assert len(kept.uids()) <= 11
    for number in range(1000):
        kept.begin_attempt("u49", 0)
        kept.offer("u49", [f"n{number}"], 0)
    assert len(kept.attempts("u49").tried) <= attempts.MAX_TRIED + 1


def tables(kept: PodRecords) -> dict[str, int]:
    return {
        name: len(value)
        for name, value in (vars(kept) | vars(kept.expected)).items()
        if isinstance(value, dict) or name == "reasons"
    }


def test_a_forgotten_pod_leaves_nothing_in_any_table() -> None:
    changed: list[str] = []
    chosen = [FreeCard(8, 0, cards(8)[0])]
    kept = PodRecords(Policies(), changed.append)
    for of in (pod("a", 6), pod("a", 6, node="n")):
        for uid in ("uid-a", "unknown"):
            kept.update(pod("a", 6))
            kept.begin_attempt(uid, 0.0)
            kept.offer(uid, ["n"], 0.0)
            kept.answer(uid, 1, [FULL], 0.0)
            kept.expected.expect(uid, "n", chosen, kept.request_of(pod("a", 6)), 0.0)
        assert kept.expected.units_on("n") == {"GPU-0": 12}
        record = kept.update(of)
        for table in (kept.unplaced, kept.unplaced_reported, kept.edited):
            table[record.uid] = record
        assert kept.forget("uid-a") == of
        kept.forget("unknown")
        assert set(tables(kept).values()) == {0}
    assert changed == ["n"] * 8


@pytest.mark.parametrize(("at_once", "again"), [(True, 6), (False, 63)])
def test_another_result_of_a_plan_is_told_a_minute_later_and_the_first_one_at_once(
    kept, at_once, again
) -> None:
    gates = (SchedulingGate(GATE_ADMISSION),)
    kept.update(changed(pod("a", 8), spec={"scheduling_gates": gates}))
    told = []
    for second in range(1, 90):
        if second == 6:
            kept.report_again("uid-a", at_once=at_once)
        told += [second for _ in kept.take_unreported(float(second), 5)]
    assert told == [3, again]
