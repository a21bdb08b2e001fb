"""When a candidate may take the Lease, and what it writes: a table of its states."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.errors import ApiError, SettingsError
from gpushare.kube.lease import NEVER, Election, Record, Timing, _micro_time, changed, record_of

TIMING = Timing(6.0, 4.0, 1.0)
ME, OTHER = "me", "other"


def record(holder=OTHER, version="1", seconds=6.0) -> Record:
    return Record(holder, version, seconds, "10.0.0.1:1")


def election() -> Election:
    return Election(ME, TIMING)


def test_another_holder_keeps_what_it_renews():
    found = election()
    for now in range(60):
        found.observed(record(version=str(now // 5)), now)
        assert found.step(now) == "wait"
        assert found.leader(now).holder == OTHER


def test_a_lease_may_be_taken_exactly_after_its_duration():
    found = election()
    found.observed(record(), 10.0)
    found.observed(record(), 15.99)
    assert found.step(15.99) == "wait"
    assert found.step(16.0) == "take"
    assert found.leader(16.0) is None


def test_the_duration_is_the_one_that_the_holder_wrote():
    found = election()
    found.observed(record(seconds=60.0), 0.0)
    assert found.step(59.9) == "wait"


def test_a_released_lease_is_taken_at_once():
    found = election()
    found.observed(Record("", "1", 1.0, is_released=True), 10.0)
    assert found.step(10.0) == "take"


@pytest.mark.parametrize("holder", ["", ME])
@pytest.mark.parametrize("seconds", [1.0, 6.0, 60.0])
def test_a_lease_with_a_changed_holder_counts_as_held(holder, seconds):
    leader, candidate = Election(OTHER, TIMING), election()
    leader.wrote(record(), 9.0, 9.1)
    candidate.observed(record(), 9.5)
    candidate.observed(record(holder, "2", seconds), 10.0)
    assert not candidate.leads(10.0)
    assert candidate.step(leader.ends_at) == "wait"
    assert candidate.step(9.99 + max(seconds, 6.0)) == "wait"
    assert candidate.step(10.0 + max(seconds, 6.0)) == "take"


def test_a_holder_that_is_restored_continues_in_its_own_term():
    found = election()
    mine = Record(ME, "1", 6.0, term="3 then")
    found.wrote(mine, 10.0, 10.1)
    found.observed(Record("", "2", 6.0, term="3 then"), 11.0)
    assert not found.leads(11.0)
    found.observed(Record(ME, "3", 6.0, term="3 then"), 12.0)
    assert found.step(12.0) == "renew"
    found.observed(Record(ME, "4", 6.0, term="4 later"), 13.0)
    assert found.step(13.0) == "wait"


@pytest.mark.parametrize(
    ("holder", "address", "is_released"),
    [("", "", True), ("", "h:1", False), ("", None, False), ("a", "", False)],
)
def test_only_a_lease_that_its_holder_released_counts_as_released(holder, address, is_released):
    annotations = {} if address is None else {"gpushare.aliyun.com/address": address}
    lease = {
        "metadata": {"resourceVersion": "1", "annotations": annotations},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": 1},
    }
    assert record_of(lease).is_released is is_released


@pytest.mark.parametrize("before", [[], [record()]])
def test_a_missing_lease_may_be_held_and_is_taken_after_its_duration(before):
    found = election()
    for each in before:
        found.observed(each, 9.0)
    found.observed(None, 10.0)
    assert found.step(15.9) == "wait"
    found.observed(None, 16.0)
    assert found.step(16.0) == "take"


def test_a_write_with_a_lost_response_is_recognized_and_leads_once_renewed():
    found = election()
    found.sending("")
    found.observed(record(holder=ME), 10.0)
    assert found.step(10.0) == "renew"
    assert not found.leads(10.0)
    found.wrote(record(holder=ME, version="2"), 10.0, 10.5)
    assert found.leads(10.5)


def test_leading_counts_from_the_sending_of_the_renewal():
    found = election()
    found.wrote(record(holder=ME), 10.0, 13.0)
    assert found.leads(13.9)
    assert not found.leads(14.0)
    assert not found.leads(1000.0), "suspended past the lease"
    assert found.ends_at < 10.0 + TIMING.lease


@pytest.mark.parametrize(
    "stop", [Election.step_down, lambda found: found.observed(record(version="7"), 10.5)]
)
def test_it_leads_neither_after_stepping_down_nor_after_its_lease_was_taken(stop):
    found = election()
    found.wrote(record(holder=ME), 10.0, 10.1)
    stop(found)
    assert not found.leads(10.5)
    assert found.ends_at == NEVER


@pytest.mark.parametrize(
    ("lease", "renew", "retry"), [(6, 6, 1), (6, 4, 4), (6, 5.9, 1), (0, 0, 0), (6, 4, 0)]
)
def test_impossible_durations_are_rejected(lease, renew, retry):
    with pytest.raises(SettingsError, match="shorter than the one before"):
        Timing(lease, renew, retry)


@given(st.floats(1, 300), st.floats(0, 1e6), st.floats(0, 1e4))
def test_a_candidate_never_takes_before_the_holder_has_ended(lease, sent_at, delay):
    timing = Timing(lease, lease / 2, lease / 4)
    holder, candidate = Election(OTHER, timing), Election(ME, timing)
    holder.wrote(record(), sent_at, sent_at + delay)
    written = Record(OTHER, "2", float(timing.written))
    candidate.observed(written, sent_at + delay)
    assert candidate.free_at > holder.ends_at
    assert candidate.step(holder.ends_at) == "wait"


def test_fields_of_others_on_the_lease_stay():
    before = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "x", "labels": {"a": "b"}, "annotations": {"c": "d"}},
        "spec": {"holderIdentity": OTHER, "leaseTransitions": 3, "strategy": "kept"},
    }
    now = "2026-11-21T10:00:00.000001Z"
    after = changed(before, holder=ME, address="h:1", seconds=6, now=now, takes=True)
    assert after["metadata"]["labels"] == {"a": "b"}
    assert after["metadata"]["annotations"] == {"c": "d", "gpushare.aliyun.com/address": "h:1"}
    assert after["spec"] == {
        "holderIdentity": ME,
        "leaseTransitions": 4,
        "strategy": "kept",
        "acquireTime": now,
        "renewTime": now,
        "leaseDurationSeconds": 6,
    }
    again = changed(after, holder=ME, address="h:1", seconds=6, now="later", takes=False)
    assert (again["spec"]["leaseTransitions"], again["spec"]["acquireTime"]) == (4, now)
    free = changed(again, holder="", address="", seconds=1, now="later", takes=False)
    assert (free["spec"]["leaseTransitions"], free["spec"]["holderIdentity"]) == (4, "")
    mine = changed(again, holder=ME, address="h:1", seconds=6, now="later", takes=True)
    assert (mine["spec"]["leaseTransitions"], mine["spec"]["acquireTime"]) == (5, "later")
    assert before["metadata"]["annotations"] == {"c": "d"}


@pytest.mark.parametrize("lease", [{}, {"metadata": None}, {"metadata": {"name": "x"}}, {"a": 1}])
def test_a_response_that_is_not_a_lease_is_an_error(lease):
    with pytest.raises(ApiError, match="not a Lease"):
        record_of(lease)


@pytest.mark.parametrize(
    "spec", [None, {"leaseDurationSeconds": None}, {"leaseDurationSeconds": 0}]
)
def test_a_lease_without_a_duration_is_read(spec):
    record = record_of({"metadata": {"resourceVersion": "1"}, "spec": spec})
    assert (record.holder, record.version, record.seconds) == ("", "1", 1.0)


def test_times_are_written_in_utc_with_six_digits():
    assert _micro_time(1795255200_000001_999) == "2026-11-21T10:00:00.000001Z"
