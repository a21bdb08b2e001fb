"""A pod belongs to the first group that it names, and says how many are needed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare import contract
from gpushare.contract import GATE_ADMISSION
from gpushare.groups import reasons, sources
from gpushare.groups.model import MOST_MEMBERS, GroupKey, Source
from tests import builders
from tests.gangs import member

ALL = {
    contract.LABEL_POD_GROUP: "crd",
    contract.LABEL_GANG: "labels",
    contract.LABEL_GANG_MINIMUM: "3",
    contract.LABEL_KUEUE_GROUP: "kueue",
}


def test_the_first_source_that_a_pod_has_counts():
    native = member("p", "native", source=Source.NATIVE, labels=ALL)
    assert sources.key_of(native) == GroupKey("default", Source.NATIVE, "native")
    labels = dict(ALL)
    for label, source in (
        (contract.LABEL_POD_GROUP, Source.POD_GROUP),
        (contract.LABEL_GANG, Source.LABELS),
        (contract.LABEL_KUEUE_GROUP, Source.KUEUE),
    ):
        key = sources.key_of(builders.pod(labels=labels))
        assert key == GroupKey("default", source, labels.pop(label))
    assert sources.key_of(builders.pod(labels=labels)) is None


def test_each_group_of_a_leader_worker_set_is_a_gang_of_its_own():
    group = {contract.LABEL_WORKER_GROUP: "1"}
    key = sources.key_of(builders.pod(labels={contract.LABEL_GANG: "serve", **group}))
    assert key == GroupKey("default", Source.LABELS, "serve-1")
    key = sources.key_of(builders.pod(labels={contract.LABEL_POD_GROUP: "serve", **group}))
    assert key == GroupKey("default", Source.POD_GROUP, "serve")
    assert sources.key_of(builders.pod(labels=group)) is None


def test_the_annotation_names_a_kueue_group_before_the_label():
    labels = {contract.LABEL_KUEUE_GROUP: "label"}
    for annotations, name in (
        ({contract.ANNOTATION_KUEUE_GROUP: "annotation"}, "annotation"),
        ({contract.ANNOTATION_KUEUE_GROUP: ""}, "label"),
    ):
        pod = builders.pod(labels=labels, annotations=annotations)
        assert sources.key_of(pod) == GroupKey("default", Source.KUEUE, name)
    named = builders.pod(annotations={contract.ANNOTATION_KUEUE_GROUP: "only"})
    assert sources.key_of(named) == GroupKey("default", Source.KUEUE, "only")


@pytest.mark.parametrize("source", Source)
def test_a_group_without_a_name_is_none(source):
    assert sources.key_of(member("p", "", source=source)) is None


def test_a_kueue_group_that_serves_is_no_gang():
    serving = {contract.ANNOTATION_KUEUE_SERVING: "true"}
    batch = {contract.ANNOTATION_KUEUE_SERVING: "false"}
    assert sources.key_of(member("p", source=Source.KUEUE, annotations=serving)) is None
    assert sources.key_of(member("p", source=Source.KUEUE, annotations=batch)) is not None


@given(st.from_regex(r"[^/]{1,20}/[^/]{1,20}", fullmatch=True), st.sampled_from(Source))
def test_a_key_can_be_read_back(names, source):
    namespace, name = names.split("/")
    key = GroupKey(namespace, source, name)
    assert GroupKey.parsed(str(key)) == key


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "+2", " 2", "2.0", "two", "1e3", "٣", "²", "9" * 63, "9" * 4000]
)
def test_a_minimum_that_is_not_a_positive_integer_is_a_problem(text):
    said = sources.minimum_of(member("p", minimum=text), Source.LABELS)
    assert said == reasons.WRONG_MINIMUM
    said = sources.minimum_of(member("p", minimum=text, source=Source.KUEUE), Source.KUEUE)
    assert said == reasons.WRONG_COUNT


def test_a_minimum_is_at_most_what_is_planned_together():
    said = [
        sources.minimum_of(member("p", minimum=each), Source.LABELS)
        for each in (1, MOST_MEMBERS, MOST_MEMBERS + 1)
    ]
    assert said == [1, MOST_MEMBERS, reasons.WRONG_MINIMUM]


def test_a_pod_may_say_nothing():
    for source in Source:
        pod = member("p", minimum=None, source=source)
        assert sources.minimum_of(pod, source) is None
        assert sources.zone_key_of(pod) == ""


@pytest.mark.parametrize(
    "key", ["zone", "topology.kubernetes.io/zone", "a.b/C_d.e-f", "x" * 63, "a/" + "x" * 63]
)
def test_a_zone_is_the_key_of_a_node_label(key):
    assert sources.zone_key_of(member("p", zone_key=key)) == key


@pytest.mark.parametrize(
    "key", ["a b", "/zone", "zone/", "a/b/c", "A/b", "-a", "a-", "a..b/c", "x" * 64, "ä", "a\n"]
)
def test_a_zone_that_no_node_can_have_is_a_problem(key):
    assert sources.zone_key_of(member("p", zone_key=key)) == reasons.WRONG_ZONE


@given(st.text("a-./_Z\n ", max_size=400) | st.text(max_size=100))
def test_any_text_as_a_zone_is_answered_at_once(text):
    found = sources.zone_key_of(member("p", zone_key=text))
    assert found == text or found is reasons.WRONG_ZONE


@pytest.mark.parametrize(
    ("gates", "deleted", "expected"),
    [
        ((), None, True),
        ((GATE_ADMISSION,), None, True),
        ((GATE_ADMISSION, "kueue.x-k8s.io/admission"), None, False),
        (("kueue.x-k8s.io/admission",), None, False),
        ((), "2026-01-01T00:00:00Z", False),
    ],
)
def test_pods_that_others_gate_and_pods_that_end_do_not_count(gates, deleted, expected):
    assert sources.counts(member("p", gates=gates, deleted=deleted)) is expected


def test_members_are_in_the_order_of_their_importance():
    expected = [
        member("master", labels={contract.LABEL_JOB_ROLE: "master"}, created="9"),
        member("index-0", labels={contract.LABEL_JOB_INDEX: "0"}, created="8"),
        member("worker-2", labels={contract.LABEL_WORKER_INDEX: "2"}, created="7"),
        member("replica-10", labels={contract.LABEL_REPLICA_INDEX: "10"}, created="6"),
        member("older", created="1"),
        member("a", created="2", labels={contract.LABEL_POD_INDEX: "first"}),
        member("b", created="2", labels={contract.LABEL_JOB_ROLE: "worker"}),
    ]
    mixed = [*expected[3:], *expected[:3]]
    assert sorted(mixed, key=sources.rank) == expected


def test_the_launcher_of_an_mpi_job_is_first():
    launcher = member("z", labels={contract.LABEL_JOB_ROLE: "launcher"})
    worker = member("a", labels={contract.LABEL_REPLICA_INDEX: "0"})
    assert sources.rank(launcher) < sources.rank(worker)


def test_a_leader_of_a_worker_set_is_first_whatever_its_number_in_the_stateful_set():
    leader = {contract.LABEL_WORKER_INDEX: "0", contract.LABEL_POD_INDEX: "7"}
    worker = {contract.LABEL_WORKER_INDEX: "1", contract.LABEL_POD_INDEX: "1"}
    assert sources.rank(member("z", labels=leader)) < sources.rank(member("a", labels=worker))
