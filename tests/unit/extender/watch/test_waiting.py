"""What is remembered of pods that wait, and how seldom they are told."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from extender.watch import waiting
from extender.watch.waiting import Waiting
from gpushare.answers.explain import Asked

FULL, SMALL = "no room", "too small"


def test_the_last_question_counts_and_the_wait_begins_with_the_first():
    kept = Waiting()
    kept.asked("a", 3, [FULL, FULL, SMALL], 10.0)
    kept.asked("a", 2, [FULL, FULL], 15.0)
    assert kept.of("a") == Asked(10.0, 15.0, 2, {FULL: 2})
    kept.asked("a", 4, [], 16.0)
    assert kept.of("a") == Asked(10.0, 16.0, 4, {})
    kept.asked("a", 1, [FULL], 20.0)
    assert kept.of("a").since == 20.0


def test_who_fits_at_once_leaves_nothing_behind():
    kept = Waiting()
    kept.asked("a", 1000, [], 1.0)
    assert kept.of("a") is None
    assert len(kept) == 0


def test_a_pod_is_told_once_for_each_set_of_reasons_whatever_their_numbers():
    kept, told = Waiting(), []
    for second in range(1000):
        reasons = [FULL] * (second % 7 + 1) + [SMALL] * (second >= 500)
        kept.asked("a", 9, reasons, float(second))
        told += [(second, set(asked.reasons)) for _, asked in kept.to_tell(float(second), 5)]
    assert told == [(2, {FULL}), (500, {FULL, SMALL})]


def test_reasons_that_come_and_go_are_told_once_a_minute():
    kept, told = Waiting(), []
    for second in range(300):
        kept.asked("a", 1, [FULL if second % 2 else SMALL], float(second))
        told += [second for _ in kept.to_tell(float(second), 5)]
    assert len(told) <= 300 / waiting.AGAIN_SECONDS + 1
    assert all(later - one >= waiting.AGAIN_SECONDS for one, later in pairwise(told))


def test_who_waits_but_a_moment_is_told_nothing():
    kept = Waiting()
    kept.asked("a", 1, [FULL], 0.0)
    assert kept.to_tell(1.9, 5) == []
    kept.asked("a", 1, [], 2.0)
    assert kept.to_tell(9.0, 5) == []
    kept.asked("b", 1, [FULL], 9.0)
    kept.forget("b")
    assert kept.to_tell(20.0, 5) == []


def test_a_thousand_that_wait_are_told_a_few_at_a_time_and_nobody_is_left_out():
    kept, told = Waiting(), []
    for number in range(1000):
        kept.asked(f"p{number}", 1, [FULL], 0.0)
    kept.asked("late", 1, [FULL], 100.0)
    for second in range(2, 203):
        now = kept.to_tell(float(second), 5)
        assert len(now) <= 5
        told += [uid for uid, _ in now]
    assert sorted(told) == sorted([*(f"p{number}" for number in range(1000)), "late"])


def test_who_would_fit_by_now_is_not_counted_among_those_that_wait():
    kept = Waiting()
    kept.asked("a", 1, [FULL], 0.0)
    kept.asked("b", 1, [FULL], 0.0)
    kept.asked("a", 1, [], 1.0)
    assert len(kept) == 1


def test_what_is_kept_has_a_bound_and_who_was_asked_about_last_stays():
    kept = Waiting()
    for number in range(waiting.MOST_PODS + 10):
        kept.asked(f"p{number}", 1, [FULL], float(number))
        kept.asked("p0", 1, [FULL], float(number))
    assert len(kept) == waiting.MOST_PODS
    assert kept.of("p0") is not None
    assert kept.of("p1") is None


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.lists(st.sampled_from([FULL, SMALL]), max_size=3),
            st.sampled_from(["ask", "forget", "tell"]),
            st.integers(0, 40),
        ),
        max_size=60,
    )
)
def test_nobody_is_told_what_is_not_so_or_what_he_knows(steps):
    kept, now, last, told = Waiting(), 0.0, {}, {}
    for uid, texts, what, seconds in steps:
        now += seconds
        if what == "ask":
            kept.asked(uid, len(texts), texts, now)
            last[uid] = texts
        elif what == "forget":
            kept.forget(uid)
            last.pop(uid, None)
            told.pop(uid, None)
        else:
            for each, asked in kept.to_tell(now, 2):
                assert set(asked.reasons) == set(last[each]) != set()
                assert told.get(each) != set(asked.reasons)
                told[each] = set(asked.reasons)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from("abc"), st.lists(st.sampled_from([FULL, SMALL]))),
            st.tuples(st.sampled_from("abc"), st.none()),
        ),
        max_size=30,
    )
)
def test_each_reason_counts_the_pods_that_wait_for_it_now(events):
    kept = Waiting()
    for now, (uid, texts) in enumerate(events):
        if texts is None:
            kept.forget(uid)
        else:
            kept.asked(uid, len(texts), texts, float(now))
    now = [set(kept.of(uid).reasons) for uid in "abc" if kept.of(uid) is not None]
    assert kept.of_reason == {
        text: count for text in (FULL, SMALL) if (count := sum(text in each for each in now))
    }
