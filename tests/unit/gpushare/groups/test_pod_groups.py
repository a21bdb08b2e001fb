"""A PodGroup of either kind is read, and one that cannot be read has no minimum."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.groups.model import MOST_MEMBERS, GroupKey, PodGroup, Source
from gpushare.groups.pod_groups import value_of
from tests.gangs import pod_group

NATIVE = GroupKey("default", Source.NATIVE, "g")
OTHER = GroupKey("default", Source.POD_GROUP, "g")

ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


def native(spec):
    return value_of(pod_group(spec=spec), Source.NATIVE)


def coscheduling(spec):
    return value_of(pod_group(spec=spec), Source.POD_GROUP)


def test_a_native_group_has_a_minimum_a_topology_and_a_priority():
    spec = {
        "workloadRef": {"workloadName": "w", "templateName": "t"},
        "schedulingPolicy": {"gang": {"minCount": 4}},
        "schedulingConstraints": {"topology": [{"key": "example.com/rack"}]},
        "disruptionMode": {"all": {}},
        "priority": 1000,
    }
    assert native(spec) == PodGroup(NATIVE, 4, zone_key="example.com/rack", priority=1000)


def test_members_of_a_basic_native_group_are_placed_one_by_one():
    assert native({"schedulingPolicy": {"basic": {}}}) == PodGroup(NATIVE, 1)


def test_a_coscheduling_group_has_a_minimum_and_a_timeout():
    spec = {"minMember": 3, "minResources": {"cpu": "8"}, "scheduleTimeoutSeconds": 60}
    assert coscheduling(spec) == PodGroup(OTHER, 3, timeout_seconds=60)


@pytest.mark.parametrize(
    "minimum", [0, -1, MOST_MEMBERS + 1, 2**31, 10**30, "3", 3.5, None, True, [], {}]
)
def test_a_minimum_that_is_none_is_not_read(minimum):
    assert coscheduling({"minMember": minimum, "scheduleTimeoutSeconds": 9}).minimum is None
    assert native({"schedulingPolicy": {"gang": {"minCount": minimum}}}).minimum is None


@pytest.mark.parametrize(("stated", "counted"), [(1, 15), (86_401, 86_400), (10**30, 86_400)])
def test_a_timeout_evicts_no_gang_at_once_and_keeps_no_room_for_days(stated, counted):
    spec = {"minMember": 3, "scheduleTimeoutSeconds": stated}
    assert coscheduling(spec) == PodGroup(OTHER, 3, timeout_seconds=counted)


@pytest.mark.parametrize("timeout", [0, -5, "60", None, 1.5, []])
def test_a_timeout_that_cannot_be_read_does_not_hide_the_minimum(timeout):
    spec = {"minMember": 3, "scheduleTimeoutSeconds": timeout}
    assert coscheduling(spec) == PodGroup(OTHER, 3)


@pytest.mark.parametrize("spec", [None, {}, [], "x", {"schedulingPolicy": {}}])
def test_a_group_that_says_nothing_has_no_minimum(spec):
    assert native(spec).minimum is None
    assert coscheduling(spec).minimum is None


@given(
    ANYTHING
    | st.fixed_dictionaries(
        {},
        optional={
            "minMember": ANYTHING,
            "scheduleTimeoutSeconds": ANYTHING,
            "schedulingPolicy": ANYTHING,
            "schedulingConstraints": ANYTHING,
            "priority": ANYTHING,
        },
    )
)
def test_no_object_keeps_others_from_being_read(spec):
    for read in (native, coscheduling):
        minimum = read(spec).minimum
        assert minimum is None or 1 <= minimum <= MOST_MEMBERS
