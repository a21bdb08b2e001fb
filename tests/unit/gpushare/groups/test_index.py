"""Gangs follow their pods and PodGroups, in whatever order these change."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.contract import GATE_ADMISSION
from gpushare.groups import reasons
from gpushare.groups.index import Groups
from gpushare.groups.model import MOST_MEMBERS, GroupKey, PodGroup, Source
from tests.builders import run_to_end
from tests.gangs import member

KEY = GroupKey("default", Source.LABELS, "g")
CRD = GroupKey("default", Source.POD_GROUP, "g")
NATIVE = GroupKey("default", Source.NATIVE, "g")
FOREIGN = "kueue.x-k8s.io/admission"


def groups_of(*pods, pod_groups=()):
    """An index that has read all PodGroups."""
    groups = Groups()
    for source in (Source.NATIVE, Source.POD_GROUP):
        of_source = [each for each in pod_groups if each.key.source is source]
        run_to_end(groups.replaced_pod_groups(source, of_source))
    for pod in pods:
        groups.update(pod)
    return groups


def only(groups):
    (group,) = groups
    return group


def names(group):
    return [pod.metadata.name for pod in group.present()]


def shown(groups):
    return {
        group.key: (
            dict(group.members),
            [pod.uid for pod in group.present()],
            (group.count, group.bound, group.gated, group.is_plain, group.is_ours),
            group.foreign_gates(),
            (group.problem, group.minimum, group.priority),
            (group.zone_key, group.complete_seconds, group.pod_group),
        )
        for group in groups
    }


def changed(groups, since):
    return set(groups.changes.since(since))


def test_a_gang_exists_as_long_as_it_has_pods():
    a, b = member("a"), member("b")
    groups = groups_of(a, b)
    assert groups.get(KEY) is groups.of(a.uid) is groups.named(str(KEY)) is only(groups)
    assert len(groups) == 1
    groups.forget(a.uid)
    assert names(only(groups)) == ["b"]
    assert groups.of(a.uid) is None
    groups.forget(b.uid)
    groups.forget(b.uid)
    assert list(groups) == list(groups.uids()) == []
    assert groups.get(KEY) is None


@pytest.mark.parametrize("name", ["", "2f9c-uid", "default/labels", "default/other/g", "a/b/c/d"])
def test_no_gang_has_a_name_of_another_form(name):
    assert groups_of(member("a")).named(name) is None


def test_a_gang_is_ours_while_a_pod_requests_gpu_memory_or_has_our_gate():
    server, gated = member("s", units=None), member("s", units=None, gates=(GATE_ADMISSION,))
    groups = groups_of(server)
    assert not only(groups).is_ours
    groups.update(member("w", gates=(FOREIGN,)))
    assert only(groups).is_ours
    groups.forget("default-w")
    assert not only(groups).is_ours
    groups.update(gated)
    assert only(groups).is_ours


def test_a_pod_without_a_group_is_in_no_gang():
    groups = groups_of(member("a", ""))
    assert list(groups) == []
    groups.forget("unknown")
    assert groups.changes.now == 0


def test_an_ended_pod_is_no_member():
    groups = groups_of(member("a"), member("b"), member("b", phase="Succeeded"))
    assert names(only(groups)) == ["a"]


def test_equal_names_in_two_namespaces_and_of_two_sources_are_different_gangs():
    groups = groups_of(
        member("a"),
        member("b", namespace="other"),
        member("c", source=Source.KUEUE),
        member("d", source=Source.POD_GROUP),
        member("e", source=Source.NATIVE),
    )
    assert len(groups) == 5
    assert {group.count for group in groups} == {1}


def test_a_pod_whose_labels_change_moves_to_the_other_gang():
    groups = groups_of(member("a"), member("b"))
    seen = groups.changes.now
    groups.update(member("a", "h", minimum=1))
    assert names(groups.get(KEY)) == ["b"]
    assert names(groups.of("default-a")) == ["a"]
    assert changed(groups, seen) == {str(KEY), str(KEY._replace(name="h"))}
    groups.update(member("a", ""))
    assert groups.of("default-a") is None
    assert len(groups) == 1


def test_pods_that_others_gate_or_that_end_do_not_count():
    groups = groups_of(
        member("ours", gates=(GATE_ADMISSION,)),
        member("foreign", gates=(GATE_ADMISSION, FOREIGN), minimum=9),
        member("ends", deleted="2026-01-01T00:00:00Z", minimum=9, node="n"),
        member("bound", node="n"),
    )
    group = only(groups)
    assert names(group) == ["bound", "ours"]
    assert (group.count, group.bound, group.gated, group.minimum) == (2, 1, 1, 2)
    assert group.foreign_gates() == {FOREIGN: 1}
    assert len(group.members) == 4
    groups.update(member("foreign", gates=(GATE_ADMISSION,)))
    assert (group.count, group.gated, group.foreign_gates()) == (3, 2, {})


def test_a_gang_with_nothing_that_counts_waits():
    group = only(groups_of(member("a", gates=(FOREIGN,), minimum="x")))
    assert (group.problem, group.count, group.minimum, group.priority) == (None, 0, 1, 0)


def test_members_that_disagree_need_the_largest_number():
    groups = groups_of(member("a", minimum=2), member("b", minimum=5), member("c", minimum=None))
    assert (only(groups).minimum, only(groups).problem) == (5, None)
    groups.forget("default-b")
    assert only(groups).minimum == 2


def test_the_least_important_member_gives_the_priority():
    group = only(groups_of(member("a", priority=1000), member("b", priority=-5), member("c")))
    assert (group.priority, group.problem) == (-5, None)


def test_a_minimum_that_is_never_reached_is_waiting_and_no_problem():
    group = only(groups_of(member("a", minimum=MOST_MEMBERS)))
    assert (group.problem, group.minimum, group.count) == (None, MOST_MEMBERS, 1)


@pytest.mark.parametrize(
    ("source", "minimum", "problem"),
    [
        (Source.LABELS, None, reasons.NO_MINIMUM),
        (Source.LABELS, 0, reasons.WRONG_MINIMUM),
        (Source.LABELS, "x", reasons.WRONG_MINIMUM),
        (Source.LABELS, MOST_MEMBERS + 1, reasons.WRONG_MINIMUM),
        (Source.KUEUE, None, reasons.NO_COUNT),
        (Source.KUEUE, "0", reasons.WRONG_COUNT),
        (Source.NATIVE, None, reasons.NO_POD_GROUP),
        (Source.POD_GROUP, None, reasons.NO_POD_GROUP),
    ],
)
def test_without_a_minimum_nothing_is_placed(source, minimum, problem):
    assert only(groups_of(member("a", minimum=minimum, source=source))).problem == problem


def test_one_member_whose_minimum_cannot_be_read_makes_the_gang_invalid():
    groups = groups_of(member("a", minimum=2), member("b", minimum="two"))
    assert only(groups).problem == reasons.WRONG_MINIMUM
    groups.update(member("b", minimum=2, version="2"))
    assert only(groups).problem is None


def test_the_pod_group_says_what_labels_say_otherwise():
    said = PodGroup(CRD, 3, timeout_seconds=60)
    groups = groups_of(member("a", source=Source.POD_GROUP), pod_groups=(said,))
    group = only(groups)
    assert (group.minimum, group.complete_seconds, group.problem) == (3, 60, None)
    seen = groups.changes.now
    groups.put_pod_group(PodGroup(CRD, 3, timeout_seconds=60))
    assert changed(groups, seen) == set()
    groups.put_pod_group(PodGroup(CRD, None))
    assert (group.problem, changed(groups, seen)) == (reasons.WRONG_POD_GROUP, {str(CRD)})


def test_a_gang_whose_pod_group_is_deleted_waits_for_the_next_one():
    groups = groups_of(member("a", source=Source.POD_GROUP), pod_groups=(PodGroup(CRD, 1),))
    groups.drop_pod_group(CRD)
    assert only(groups).problem == reasons.NO_POD_GROUP
    groups.put_pod_group(PodGroup(CRD, 2))
    assert (only(groups).problem, only(groups).minimum) == (None, 2)
    run_to_end(groups.replaced_pod_groups(Source.POD_GROUP, ()))
    assert only(groups).problem == reasons.NO_POD_GROUP


def test_a_pod_group_of_the_other_kind_or_namespace_is_not_the_pods():
    groups = groups_of(
        member("a", source=Source.POD_GROUP),
        pod_groups=(PodGroup(NATIVE, 1), PodGroup(CRD._replace(namespace="other"), 1)),
    )
    assert only(groups).problem == reasons.NO_POD_GROUP


def test_why_pod_groups_cannot_be_read_is_the_problem_of_gangs_that_need_one():
    groups = Groups()
    for name, source in zip("abcd", Source, strict=True):
        groups.update(member(name, source=source))
    assert groups.of("default-b").problem == reasons.NOT_LISTED
    assert groups.of("default-c").problem is groups.of("default-d").problem is None
    run_to_end(groups.replaced_pod_groups(Source.POD_GROUP, (PodGroup(CRD, 1),)))
    seen = groups.changes.now
    groups.set_unreadable(Source.POD_GROUP, reasons.NOT_READABLE)
    groups.set_unreadable(Source.NATIVE, reasons.NOT_SERVED)
    groups.set_unreadable(Source.NATIVE, reasons.NOT_SERVED)
    assert groups.of("default-a").problem == reasons.NOT_SERVED
    assert groups.of("default-b").problem is None, "what was read before remains known"
    assert changed(groups, seen) == {str(NATIVE)}
    run_to_end(groups.replaced_pod_groups(Source.POD_GROUP, (), reasons.NOT_SERVED))
    assert groups.of("default-b").problem == reasons.NOT_SERVED


@pytest.mark.parametrize(("stated", "counts"), [(7, 5), (3, 3)])
def test_a_native_group_states_its_zone_and_a_priority_up_to_that_of_its_pods(stated, counts):
    said = PodGroup(NATIVE, 2, zone_key="rack", priority=stated)
    pod = member("a", source=Source.NATIVE, priority=5, zone_key="rack")
    group = only(groups_of(pod, pod_groups=(said,)))
    assert (group.priority, group.zone_key, group.problem) == (counts, "rack", None)


def test_a_gang_has_one_zone_label():
    groups = groups_of(member("a", zone_key="zone"), member("b"))
    assert (only(groups).zone_key, only(groups).problem) == ("zone", None)
    groups.update(member("b", zone_key="rack", version="2"))
    assert only(groups).problem == reasons.TWO_ZONES
    groups.update(member("b", zone_key="a b", version="3"))
    assert only(groups).problem == reasons.WRONG_ZONE
    groups.update(member("b", version="4"))
    assert only(groups).problem is None
    said = PodGroup(NATIVE, 1, zone_key="rack")
    native = member("c", source=Source.NATIVE, zone_key="zone")
    assert only(groups_of(native, pod_groups=(said,))).problem == reasons.TWO_ZONES


def test_only_what_may_change_an_answer_is_a_change():
    groups = groups_of(member("a"))
    group, seen = only(groups), groups.changes.now
    version = group.version
    groups.update(member("a", phase="Running", version="2"))
    assert (changed(groups, seen), group.version) == (set(), version)
    assert group.members["default-a"].status.phase == "Running"
    for pod in (member("a", node="n"), member("a", node="n", units=2)):
        seen, version = groups.changes.now, group.version
        groups.update(pod)
        assert changed(groups, seen) == {str(KEY)}
        assert group.version > version


def test_a_gang_that_returns_has_another_version():
    groups = groups_of(member("a"))
    version = only(groups).version
    groups.forget("default-a")
    groups.update(member("a"))
    assert only(groups).version > version


def test_a_gang_of_ten_thousand_pods_is_a_problem_and_costs_little():
    pods = [member(f"p{number}", created=str(number % 7)) for number in range(10_000)]
    groups = Groups()
    began = time.process_time()
    for number, pod in enumerate(pods):
        groups.update(pod)
        assert (only(groups).problem is None) == (number < MOST_MEMBERS)
    for pod in pods[MOST_MEMBERS:]:
        groups.forget(pod.uid)
    assert time.process_time() - began < 5.0
    assert (only(groups).problem, only(groups).count) == (None, MOST_MEMBERS)


PODS = st.builds(
    member,
    st.sampled_from("abcde"),
    st.sampled_from(["", "g", "h"]),
    st.sampled_from([None, "1", "3", "x", "0"]),
    source=st.sampled_from(Source),
    namespace=st.sampled_from(["default", "other"]),
    node=st.sampled_from(["", "n"]),
    priority=st.sampled_from([None, -1, 5]),
    gates=st.sampled_from([(), (GATE_ADMISSION,), (FOREIGN,)]),
    created=st.sampled_from(["1", "2"]),
    deleted=st.sampled_from([None, None, "3"]),
    zone_key=st.sampled_from([None, None, "zone", "rack", "a b"]),
    phase=st.sampled_from(["Pending", "Running", "Failed"]),
)
OBJECTS = st.builds(
    PodGroup,
    st.builds(
        GroupKey,
        st.sampled_from(["default", "other"]),
        st.sampled_from([Source.NATIVE, Source.POD_GROUP]),
        st.sampled_from("gh"),
    ),
    st.sampled_from([None, 1, 4]),
    st.sampled_from([None, 60]),
    st.sampled_from(["", "zone"]),
    st.sampled_from([None, 9]),
)
STEPS = st.one_of(
    st.tuples(st.just("pod"), PODS),
    st.tuples(st.just("pod"), PODS),
    st.tuples(st.just("forget"), PODS),
    st.tuples(st.just("put"), OBJECTS),
    st.tuples(st.just("drop"), OBJECTS),
    st.tuples(st.just("list"), st.lists(OBJECTS, max_size=3)),
    st.tuples(st.just("unreadable"), st.sampled_from([None, reasons.NOT_SERVED])),
)


class Followed:
    """An index that follows events, and the pods and PodGroups that exist after them."""

    def __init__(self):
        self.groups, self.pods, self.objects = Groups(), {}, {}
        self.unreadable = reasons.NOT_LISTED

    def take(self, kind, what):
        groups = self.groups
        if kind == "pod":
            self.pods[what.uid] = what
            groups.update(what)
        elif kind == "forget":
            self.pods.pop(what.uid, None)
            groups.forget(what.uid)
        elif kind == "put":
            self.objects[what.key] = what
            groups.put_pod_group(what)
        elif kind == "drop":
            self.objects.pop(what.key, None)
            groups.drop_pod_group(what.key)
        elif kind == "list":
            listed = {each.key: each for each in what if each.key.source is Source.POD_GROUP}
            native = {k: v for k, v in self.objects.items() if k.source is Source.NATIVE}
            self.objects = listed | native
            run_to_end(groups.replaced_pod_groups(Source.POD_GROUP, what_of(what)))
            self.unreadable = None
        else:
            groups.set_unreadable(Source.POD_GROUP, what)
            self.unreadable = what

    def from_scratch(self, order):
        groups = Groups()
        groups.set_unreadable(Source.POD_GROUP, self.unreadable)
        events = [*self.pods.values(), *self.objects.values()]
        for event in sorted(events, key=lambda _: order.random()):
            if isinstance(event, PodGroup):
                groups.put_pod_group(event)
            else:
                groups.update(event)
        return groups


def what_of(items):
    return [each for each in items if each.key.source is Source.POD_GROUP]


@settings(max_examples=300)
@given(st.lists(STEPS, max_size=40), st.randoms(use_true_random=False))
def test_any_order_of_events_gives_the_index_of_what_exists(steps, order):
    followed = Followed()
    for kind, what in steps:
        before, seen = shown(followed.groups), followed.groups.changes.now
        followed.take(kind, what)
        after = shown(followed.groups)
        is_said = {GroupKey.parsed(each) for each in followed.groups.changes.since(seen)}
        answers = {
            key
            for key in before.keys() | after.keys()
            if key not in before or key not in after or before[key][1:] != after[key][1:]
        }
        assert answers <= is_said
    assert shown(followed.groups) == shown(followed.from_scratch(order))
    live = {uid for uid, pod in followed.pods.items() if followed.groups.of(uid) is not None}
    assert set(followed.groups.uids()) == live
