"""A GPU is never healthy before its recovery time, and always healthy in the end."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deviceplugin.cards.rules import (
    ACTIONS,
    MAX_WAIT_SECONDS,
    NO_FAULT,
    QUICK_CHECKS,
    CardHealth,
    HealthCheckResult,
    HealthReason,
    State,
    after,
    finding_of,
    finding_of_xid,
    reset_done,
    wait_seconds,
)
from deviceplugin.driver.interface import PhysicalCard, Query, UnreadableCard
from deviceplugin.driver.xids import HARMLESS_XIDS, RESET_XIDS

RECOVER = 60.0
DEFINITE = HealthCheckResult("GPU is lost", is_definite=True, reason=HealthReason.LOST)
HICCUP = HealthCheckResult("Unknown Error", reason=HealthReason.UNREADABLE)
GONE = HealthCheckResult("no longer shown", is_definite=True, is_gone=True)
findings = st.sampled_from([NO_FAULT, NO_FAULT, HICCUP, DEFINITE, GONE])
histories = st.lists(st.tuples(findings, st.floats(0.0, 200.0)), max_size=60)


def run(
    health: CardHealth, *found: HealthCheckResult, step: float = 1.0, now: float = 0.0
) -> CardHealth:
    for each in found:
        now += step
        health = after(health, each, now, RECOVER)
    return health


@settings(deadline=None)
@given(histories)
def test_an_unhealthy_gpu_is_never_offered_before_its_recovery_time(history) -> None:
    """Judged by the findings alone: what has gone by since the last bad one of an ill card."""
    health, now, good_since, is_ill, bad_in_a_row = CardHealth(), 0.0, None, False, 0
    for found, seconds in history:
        now += seconds
        health = after(health, found, now, RECOVER)
        bad_in_a_row = bad_in_a_row + 1 if found.why else 0
        if found.why:
            is_ill = is_ill or found.is_definite or bad_in_a_row > QUICK_CHECKS
            good_since = None
        elif good_since is None:
            good_since = now
        if is_ill:
            is_time_up = good_since is not None and now - good_since >= RECOVER
            assert is_time_up or not health.is_offered
        if health.is_offered:
            is_ill = False
        assert health.is_offered or health.why
        assert (health.state is State.HEALTHY) == (not health.why)


@settings(deadline=None)
@given(histories)
def test_a_gpu_whose_checks_stay_good_becomes_healthy(history) -> None:
    health, now = CardHealth(), 0.0
    for found, seconds in history:
        now += seconds
        health = after(health, found, now, RECOVER)
    health = after(health, NO_FAULT, now, RECOVER)
    assert after(health, NO_FAULT, now + MAX_WAIT_SECONDS, RECOVER).state is State.HEALTHY


@settings(deadline=None)
@given(histories)
def test_the_recovery_time_is_between_the_setting_and_an_hour(history) -> None:
    health, now = CardHealth(), 0.0
    for found, seconds in history:
        now += seconds
        health = after(health, found, now, RECOVER)
        if health.state is State.UNHEALTHY:
            assert RECOVER <= health.owed <= MAX_WAIT_SECONDS
            assert health.owes(now) == health.owed


@given(st.integers(0, 100), st.floats(0.1, 3600))
def test_each_further_failure_takes_at_least_as_long(failures: int, seconds: float) -> None:
    assert wait_seconds(failures, seconds) <= wait_seconds(failures + 1, seconds)
    assert wait_seconds(failures, seconds) <= MAX_WAIT_SECONDS


def test_each_repeated_failure_doubles_the_recovery_time() -> None:
    health, now, waits = CardHealth(), 0.0, []
    for _ in range(8):
        health = after(health, DEFINITE, now, RECOVER)
        health = after(health, NO_FAULT, now, RECOVER)
        began = now
        while not health.is_offered:
            now += 1.0
            health = after(health, NO_FAULT, now, RECOVER)
        waits.append(now - began)
    assert waits == [60, 120, 240, 480, 960, 1920, 3600, 3600]


def test_each_healthy_hour_forgets_one_failure() -> None:
    ill = CardHealth(failures=3, since=0.0)
    assert after(ill, DEFINITE, 3599.0, RECOVER).failures == 4
    assert after(ill, DEFINITE, 3600.0, RECOVER).failures == 3
    assert after(ill, DEFINITE, 1e9, RECOVER).failures == 1


def test_one_temporary_error_makes_a_gpu_suspect_and_three_more_unhealthy() -> None:
    health = run(CardHealth(), HICCUP)
    assert (health.state, health.is_offered) == (State.SUSPECT, True)
    assert run(health, NO_FAULT) == CardHealth()
    assert run(health, HICCUP, HICCUP).state is State.SUSPECT
    assert run(health, HICCUP, HICCUP, HICCUP).state is State.UNHEALTHY


def test_errors_with_good_checks_between_them_are_no_failure() -> None:
    assert run(CardHealth(), *([HICCUP, HICCUP, NO_FAULT] * 10)).state is State.HEALTHY


@pytest.mark.parametrize("found", [DEFINITE, GONE])
def test_a_definite_error_makes_a_gpu_unhealthy_at_once(found: HealthCheckResult) -> None:
    for before in (CardHealth(), run(CardHealth(), HICCUP)):
        health = run(before, found)
        assert (health.state, health.why) == (State.UNHEALTHY, found.why)


def test_a_failure_while_recovering_restarts_the_time_and_does_not_count_again() -> None:
    health = run(CardHealth(), DEFINITE, NO_FAULT)
    relapsed = after(health, HICCUP, 50.0, RECOVER)
    assert (relapsed.state, relapsed.failures) == (State.UNHEALTHY, 1)
    good = after(relapsed, NO_FAULT, 51.0, RECOVER)
    assert after(good, NO_FAULT, 110.9, RECOVER).state is State.RECOVERING
    assert after(good, NO_FAULT, 111.0, RECOVER).state is State.HEALTHY


def test_the_first_definite_reason_stays_until_the_gpu_is_missing() -> None:
    health = run(CardHealth(), HICCUP, HICCUP, HICCUP, HICCUP)
    assert health.why == "Unknown Error"
    xid = finding_of_xid(79, 0)
    assert run(health, xid, DEFINITE).why == xid.why
    assert run(health, xid, GONE).is_gone


@pytest.mark.parametrize("xid", sorted(HARMLESS_XIDS))
def test_an_applications_fault_leaves_the_gpu_healthy(xid: int) -> None:
    assert finding_of_xid(xid, None) == NO_FAULT
    assert finding_of_xid(xid, 0) == NO_FAULT


@pytest.mark.parametrize("action", [*ACTIONS, 99])
def test_the_drivers_advice_is_named_in_the_text(action: int) -> None:
    shown = PhysicalCard("GPU-0", 0, "m", 1, recovery_action=action)
    advice = ACTIONS.get(action, "take recovery action 99")
    assert finding_of(shown) == HealthCheckResult(
        f"the driver advises to {advice}",
        is_definite=True,
        reason=HealthReason.ADVICE,
        shows_reset=True,
    )
    assert finding_of_xid(13, action).why == f"XID 13: the driver advises to {advice}"


def test_a_gpu_is_not_offered_until_the_drivers_advice_was_followed() -> None:
    advised = finding_of(PhysicalCard("GPU-0", 0, "m", 1, recovery_action=1))
    ill = run(CardHealth(), finding_of_xid(119, 1), *[advised] * 10_000)
    assert not ill.is_offered
    followed = finding_of(PhysicalCard("GPU-0", 0, "m", 1, recovery_action=0))
    assert run(ill, *[followed] * int(RECOVER), now=10_001).state is State.RECOVERING
    assert run(ill, *[followed] * (int(RECOVER) + 1), now=10_001).is_offered


def test_an_unreadable_gpu_has_the_drivers_error_as_its_reason() -> None:
    assert finding_of(UnreadableCard(0, "", "Unknown Error")) == HICCUP
    lost = replace(DEFINITE, shows_reset=True)
    assert finding_of(UnreadableCard(0, "", "GPU is lost", True)) == lost


# What a reset must mend. ``None`` is a driver that gives no advice.
OLDER = PhysicalCard("GPU-0", 0, "m", 1)
ADVISED = replace(OLDER, recovery_action=0)
LASTING = (
    replace(OLDER, uncorrected_errors=2),
    replace(OLDER, repair_pending=True),
    replace(OLDER, recovery_action=1),
    UnreadableCard(0, "GPU-0", "GPU is lost", is_definite=True),
    UnreadableCard(0, "GPU-0", "GPU requires reset", is_definite=True),
)
checks = st.lists(
    st.sampled_from([OLDER, OLDER, ADVISED, UnreadableCard(0, "GPU-0", "Unknown Error"), *LASTING]),
    max_size=12,
)


def shows_reset(card: PhysicalCard | UnreadableCard) -> bool:
    return card in LASTING or card == ADVISED


def longest(history: list) -> int:
    """The most checks in a row that show by themselves whether a reset is needed."""
    most = row = 0
    for card in history:
        row = row + 1 if shows_reset(card) else 0
        most = max(most, row)
    return most


@settings(deadline=None)
@given(st.sampled_from(sorted(RESET_XIDS)), checks, checks, st.floats(0.0, 10 * MAX_WAIT_SECONDS))
def test_an_xid_that_needs_a_reset_stays_until_one(xid: int, before, then, step: float) -> None:
    """Unless the checks themselves show several times in a row whether it is needed."""
    now, health = 0.0, CardHealth()
    for card in before:
        now += step
        health = after(health, finding_of(card), now, RECOVER)
    health = after(health, finding_of_xid(xid, None), now, RECOVER)
    for card in then:
        now += step
        health = after(health, finding_of(card), now, RECOVER)
        assert health.needs_reset or longest(then) > QUICK_CHECKS
        if health.needs_reset:
            assert not health.is_offered
    health = run(reset_done(health), *[NO_FAULT] * 2, step=MAX_WAIT_SECONDS, now=now)
    assert health.state is State.HEALTHY
    assert not health.needs_reset


@settings(deadline=None)
@given(checks)
def test_a_gpu_with_a_condition_that_lasts_until_a_reset_is_offered_once_it_has_ended(
    history,
) -> None:
    health = run(CardHealth(), *map(finding_of, history))
    for lasting in LASTING:
        ill = run(health, *[finding_of(lasting)] * 20, step=MAX_WAIT_SECONDS)
        assert not ill.is_offered
        later = 21 * MAX_WAIT_SECONDS
        well = run(ill, *[finding_of(OLDER)] * 2, step=MAX_WAIT_SECONDS, now=later)
        assert well.is_offered != ill.needs_reset


@pytest.mark.parametrize("lasting", LASTING)
def test_a_lasting_condition_takes_the_place_of_the_memory_of_an_xid(lasting) -> None:
    ill = run(CardHealth(), finding_of_xid(48, None), *[finding_of(lasting)] * 4)
    assert not ill.is_offered
    assert run(ill, *[finding_of(OLDER)] * 2, step=RECOVER + 1, now=5).is_offered


@pytest.mark.parametrize("lasting", LASTING)
def test_one_odd_check_ends_no_memory_of_an_xid(lasting) -> None:
    found = [finding_of_xid(48, None), *[finding_of(OLDER), *[finding_of(lasting)] * 3] * 5]
    ill = run(CardHealth(), *found)
    assert run(ill, *[finding_of(OLDER)] * 100, step=MAX_WAIT_SECONDS).state is State.UNHEALTHY


@pytest.mark.parametrize(
    "odd", [replace(OLDER, uncorrected_errors=2), replace(OLDER, repair_pending=True)]
)
def test_one_odd_count_takes_no_gpu_away(odd: PhysicalCard) -> None:
    health = run(CardHealth(), *[finding_of(odd), finding_of(OLDER)] * 20)
    assert health == CardHealth()


def test_a_driver_that_advises_nothing_is_asked_and_one_that_advises_decides() -> None:
    for card in LASTING[:2]:
        assert finding_of(card).why
        assert not finding_of(replace(card, recovery_action=0)).why


@pytest.mark.parametrize(
    ("fault", "query"),
    [
        (replace(OLDER, recovery_action=1), Query.RECOVERY_ACTION),
        (replace(OLDER, rows_failed=True), Query.REMAPPED_ROWS),
        (replace(OLDER, repair_pending=True), Query.REMAPPED_ROWS),
        (replace(OLDER, repair_pending=True), Query.PENDING_PAGES),
        (replace(OLDER, uncorrected_errors=1), Query.ECC_ERRORS),
    ],
)
def test_a_query_that_fails_ends_no_fault_that_it_has_shown(fault, query: Query) -> None:
    ill = run(CardHealth(), *[finding_of(fault)] * 4)
    unknown = finding_of(replace(OLDER, failed={query: "Unknown Error"}))
    assert run(ill, *[unknown] * 100, step=MAX_WAIT_SECONDS) == ill
    assert run(CardHealth(), *[unknown] * 100) == CardHealth(), "nor takes a healthy GPU away"
    other = run(CardHealth(), DEFINITE)
    assert run(other, *[unknown] * 2, step=MAX_WAIT_SECONDS).is_offered, "nor keeps another fault"


def test_xids_with_another_remedy_are_over_after_a_time() -> None:
    for xid in (1, 32, 69, 122):
        ill = run(CardHealth(), finding_of_xid(xid, None))
        assert not ill.is_offered
        assert run(ill, *[NO_FAULT] * 2, step=RECOVER + 1).is_offered
