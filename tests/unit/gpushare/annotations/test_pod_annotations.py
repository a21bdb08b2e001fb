"""What annotations and limits mean: amounts from limits alone, cards from the decision alone."""

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.annotations import edited_decisions, pod_annotations
from gpushare.cards.model import ContainerKind, ContainerRequest, Request
from gpushare.contract import (
    ANNOTATION_ALLOCATION,
    ANNOTATION_CARDS,
    ANNOTATION_INDEX,
    ANNOTATION_INIT_ALLOCATION,
    ANNOTATION_POD_UNITS,
    ANNOTATION_RUNNING_ON,
    LABEL_CARD_COUNT,
    RESOURCE_COUNT,
)
from gpushare.errors import RequestError
from gpushare.objects.model import Container, ContainerState, ContainerStatus, Resources
from gpushare.objects.quantity import MOST_NODE_UNITS, parse_units
from gpushare.objects.scheduling import Present
from tests.builders import container, pod, stock
from tests.unit.extender.scripted import changed

INIT, SIDECAR = ContainerKind.INIT, ContainerKind.SIDECAR


def request(*containers, cards=1):
    return Request(tuple(ContainerRequest(f"c{i}", *c) for i, c in enumerate(containers)), cards)


@pytest.mark.parametrize(
    ("containers", "units"),
    [
        ([(100,), (200,)], 300),
        ([(100, INIT), (200, INIT)], 200),
        ([(500, INIT), (100,)], 500),
        ([(100, INIT), (200,), (300,)], 500),
        ([(14, INIT), (4,)], 14),
        ([(3, SIDECAR), (5, INIT), (4,)], 8),
        ([(5, INIT), (3, SIDECAR), (4,)], 7),
    ],
)
def test_the_effective_request_is_that_of_kubernetes(containers, units):
    assert request(*containers).units == units


def test_an_amount_in_canonical_form_is_read():
    assert pod_annotations.request_of(pod(units="8k")).units == 8000


@pytest.mark.parametrize(
    ("units", "says"),
    [("8Gi", "units, not of bytes"), *((each, "gpu-mem") for each in ("0", "-8", "1500m", "x"))],
)
def test_an_invalid_amount_is_rejected_with_a_text(units, says):
    with pytest.raises(RequestError, match=says):
        pod_annotations.request_of(pod(units=units))


def test_gpu_count_without_memory_is_rejected_with_the_fix():
    asks = Container("main", Resources({RESOURCE_COUNT: "1"}))
    assert pod_annotations.asks_for_share(pod(containers=[asks]))
    with pytest.raises(RequestError, match=r"request aliyun\.com/gpu-mem"):
        pod_annotations.request_of(pod(containers=[asks]))


AMOUNT = st.text(max_size=12) | st.sampled_from(["0", "00", "8", "8k", "0.0", "-0", "1Mi", "5e1"])


@given(st.lists(AMOUNT, max_size=4), st.lists(AMOUNT, max_size=2))
def test_a_request_is_rejected_or_more_than_zero(apps, inits):
    asked = pod(
        containers=[container(f"a{i}", units) for i, units in enumerate(apps)],
        inits=[container(f"i{i}", units) for i, units in enumerate(inits)],
    )
    try:
        found = pod_annotations.request_of(asked)
    except RequestError as err:
        refusal = str(err)
    else:
        assert found.units > 0
        assert [c.units for c in found.containers] == [parse_units(u) for u in [*inits, *apps]]
        return
    assert 10 < len(refusal) < 400


@pytest.mark.parametrize("label", ["0", "-1", "x", "65", "1.0", "", "9" * 40, "²", "3"])
def test_a_number_of_cards_that_is_invalid_or_does_not_split_the_amount_is_rejected(label):
    says = "3 equal parts" if label == "3" else LABEL_CARD_COUNT
    with pytest.raises(RequestError, match=says):
        pod_annotations.request_of(pod(units=8, labels={LABEL_CARD_COUNT: label}))


def decided(inventory, asked, *indexes):
    chosen = [inventory.cards[i] for i in indexes]
    return pod_annotations.decision_annotations(asked, chosen, is_legacy=False, assume_time_ns=7)


def test_the_decision_is_written_in_the_format_of_aliyun_gpushare():
    asked = pod_annotations.request_of(
        pod(
            containers=[container("a", 2), container("b", None), container("c", 4)],
            inits=[container("i", 8)],
            labels={LABEL_CARD_COUNT: "2"},
        )
    )
    written = decided(stock(16, 16, 24), asked, 0, 2)
    assert written[ANNOTATION_INDEX] == "0,2"
    assert written[ANNOTATION_POD_UNITS] == "8"
    assert msgspec.json.decode(written[ANNOTATION_ALLOCATION]) == {
        "0": {"0": 1, "2": 1},
        "2": {"0": 2, "2": 2},
    }
    assert msgspec.json.decode(written[ANNOTATION_INIT_ALLOCATION]) == {"0": {"0": 4, "2": 4}}
    assert written[ANNOTATION_CARDS] == "GPU-0,GPU-2"


def share_of(annotations):
    """Return the share of a bound pod of 8 units."""
    bound = pod(units=8, node="n", annotations=annotations)
    return pod_annotations.share_of(bound, stock(16, 16, 16))


def test_all_keys_are_written_and_replace_preset_values():
    written = decided(stock(16), Request((ContainerRequest("main", 8),)), 0)
    assert written[ANNOTATION_RUNNING_ON] == ""
    preset = {ANNOTATION_RUNNING_ON: '{"main":{"GPU-1":8}}', ANNOTATION_CARDS: "GPU-1"}
    assert share_of(preset | written).cards == ("GPU-0",)


def test_running_on_takes_precedence_over_a_minor_number_but_not_over_a_decided_uuid():
    running_on = {ANNOTATION_RUNNING_ON: '{"main":{"GPU-1":9999}}', ANNOTATION_INDEX: "0"}
    by_uuid = running_on | {ANNOTATION_CARDS: "GPU-0"}
    for annotations, card in ((running_on, "GPU-1"), (by_uuid, "GPU-0")):
        share = share_of(annotations)
        assert (share.cards, share.units) == ((card,), 8)
        bound = pod(units=8, node="n", annotations=annotations)
        assert edited_decisions.contradicts_decision(bound) is (annotations is by_uuid)


@pytest.mark.parametrize(
    "annotations",
    [
        {},
        {ANNOTATION_INDEX: ""},
        {ANNOTATION_INDEX: "7"},
        {ANNOTATION_INDEX: "-1"},
        {ANNOTATION_INDEX: "0,0"},
        {ANNOTATION_INDEX: "0x0"},
        {ANNOTATION_CARDS: "GPU-9"},
        {ANNOTATION_CARDS: ",", ANNOTATION_INDEX: "0"},
        {ANNOTATION_RUNNING_ON: '{"main":{"GPU-0":8}}'},
        {ANNOTATION_INDEX: "0", ANNOTATION_RUNNING_ON: '{"main":{"GPU-9":8}}'},
    ],
)
def test_a_bound_pod_on_unknown_cards_is_unplaced_with_its_whole_amount(annotations):
    share = share_of(annotations)
    assert (share.cards, share.units) == ((), 8)
    assert share.why_unplaced


def test_a_pod_that_was_bound_without_a_decision_starts_nowhere_with_late_binding():
    share = share_of({})
    assert (share.starts_nowhere, share.units_everywhere, share.units) == (True, 0, 8)


RUNS = ContainerStatus("main", "x://1", ContainerState(running=Present()))


@pytest.mark.parametrize(
    ("meta", "status", "inventory"),
    [
        ({}, {}, None),
        ({}, {}, replace(stock(16, 16), binding="early")),
        ({}, {}, replace(stock(16, 16), binding="")),
        ({}, {"container_statuses": (RUNS,)}, stock(16, 16)),
        ({ANNOTATION_CARDS: "GPU-9"}, {}, stock(16, 16)),
        ({ANNOTATION_INDEX: "0,0"}, {}, stock(16, 16)),
        ({ANNOTATION_RUNNING_ON: '{"main":{"GPU-0":8}}'}, {}, stock(16, 16)),
    ],
    ids=["no inventory", "early", "older plugin", "runs", "card gone", "unreadable", "running-on"],
)
def test_an_unplaced_pod_that_may_have_a_card_counts_on_every_one(meta, status, inventory):
    found = changed(pod("a", 8, node="n", annotations=meta), status=status)
    assert pod_annotations.share_of(found, inventory).units_everywhere == 8


def test_a_pod_whose_other_containers_run_still_starts_nowhere():
    helper = ContainerStatus("helper", "x://1", ContainerState(running=Present()))
    found = pod("a", node="n", containers=[container("helper", None), container("main", 8)])
    found = changed(found, status={"container_statuses": (helper,)})
    assert pod_annotations.share_of(found, stock(16, 16)).starts_nowhere


def test_a_decision_that_did_not_count_once_may_have_been_followed_for_good():
    bound = pod("a", 8, node="n")
    forged = pod("a", 8, node="n", annotations={ANNOTATION_CARDS: "GPU-0"})
    seen, _ = edited_decisions.counted_as(None, bound, is_legacy=False)
    assert pod_annotations.share_of(seen, stock(16)).starts_nowhere
    for later in (forged, bound):
        seen, _ = edited_decisions.counted_as(seen, later, is_legacy=False)
        share = pod_annotations.share_of(seen, stock(16))
        assert (share.cards, share.units_everywhere) == ((), 8)


@pytest.mark.parametrize("amount", ["1Mi", "1.5", "-1", "100", "9223372036854775807", "x"])
@pytest.mark.parametrize("binding", ["late", "early"])
def test_an_unplaced_pod_counts_at_most_what_the_node_has(amount, binding):
    inventory = replace(stock(16, 8), binding=binding)
    found = pod("a", node="n", containers=[container("main", amount)] * 3)
    assert pod_annotations.share_of(found, inventory).units == 24
    assert pod_annotations.share_of(found, None).units <= MOST_NODE_UNITS


def test_a_pod_that_asks_for_more_than_any_node_has_is_refused():
    huge = [container("a", "9223372036854775807"), container("b", "9223372036854775807")]
    with pytest.raises(RequestError, match="no node has more than"):
        pod_annotations.amounts_of(pod(containers=huge))


@pytest.mark.parametrize(
    "text", ["{", "[" * 5000, "{}", "null", '{"main":{"GPU-0":1,"GPU-1":1}}', '{"main":{}}']
)
def test_an_impossible_running_on_is_ignored(text):
    share = share_of({ANNOTATION_CARDS: "GPU-1", ANNOTATION_RUNNING_ON: text})
    assert (share.cards, share.units) == (("GPU-1",), 8)


def test_the_index_of_aliyun_gpushare_is_the_drivers_minor_number():
    assert share_of({ANNOTATION_INDEX: "1"}).cards == ("GPU-1",)


@pytest.mark.parametrize(
    "ended", [pod(units=8), pod(units=8, node="n", phase="Succeeded"), pod(units=None, node="n")]
)
def test_a_pod_that_is_unbound_or_ended_or_requests_nothing_has_no_share(ended):
    assert pod_annotations.share_of(ended, stock(16)) is None


UUIDS = st.sampled_from(["GPU-0", "GPU-1", "GPU-2", "GPU-9"])
RUNNING_ON = st.dictionaries(st.sampled_from(["main", "x"]), st.dictionaries(UUIDS, st.integers()))
TEXT = st.one_of(
    st.text(max_size=30),
    st.sampled_from(["0", "1", "{}", "0,1", "null"]),
    st.lists(UUIDS, max_size=4).map(",".join),
    RUNNING_ON.map(lambda found: msgspec.json.encode(found).decode()),
)
KEYS = st.sampled_from(
    [ANNOTATION_INDEX, ANNOTATION_CARDS, ANNOTATION_RUNNING_ON, ANNOTATION_POD_UNITS]
)


@given(st.dictionaries(KEYS, TEXT))
def test_annotations_on_an_unbound_pod_have_no_effect(annotations):
    assert pod_annotations.share_of(pod(units=8, annotations=annotations), stock(16, 16)) is None


@given(st.dictionaries(KEYS, TEXT))
def test_annotations_on_a_bound_pod_cannot_reduce_its_amount(annotations):
    share = share_of(annotations)
    assert share.units * max(1, len(share.cards)) >= 8


@given(st.dictionaries(KEYS, TEXT))
def test_later_annotations_do_not_change_the_share_of_a_decided_pod(annotations):
    decided_first = pod(units=8, node="n", annotations={ANNOTATION_CARDS: "GPU-0"})
    later = pod(units=8, node="n", annotations=annotations)
    kept = edited_decisions.keep_decision(decided_first, later) or later
    share = pod_annotations.share_of(kept, stock(16, 16))
    assert (share.cards, share.units) == (("GPU-0",), 8)


@given(st.dictionaries(KEYS, TEXT), st.dictionaries(KEYS, TEXT))
def test_a_changed_decision_on_a_bound_pod_is_ignored(first, second):
    before = pod(units=8, node="n", annotations=first)
    after = pod(units=8, node="n", annotations=second)
    kept = edited_decisions.keep_decision(before, after) or after
    for key in pod_annotations.PLACE_KEYS:
        assert kept.annotations.get(key) == first.get(key)
    runs_on = first.get(ANNOTATION_RUNNING_ON) or second.get(ANNOTATION_RUNNING_ON)
    assert (kept.annotations.get(ANNOTATION_RUNNING_ON) or None) == (runs_on or None)


@given(
    st.lists(st.tuples(st.integers(0, 50), st.sampled_from(ContainerKind)), min_size=1, max_size=6),
    st.integers(1, 4),
)
def test_a_decision_is_read_back_unchanged(containers, count):
    made = [(c, kind) for units, kind in containers if (c := units * count)]
    if not made:
        return
    asked = pod(
        containers=[container(f"a{i}", c) for i, (c, k) in enumerate(made) if k == "app"],
        inits=[
            container(f"i{i}", c, sidecar=k == "sidecar")
            for i, (c, k) in enumerate(made)
            if k != "app"
        ],
        labels={LABEL_CARD_COUNT: str(count)},
    )
    wanted = pod_annotations.request_of(asked)
    inventory = stock(*[500] * 4)
    written = decided(inventory, wanted, *range(count))
    meta = msgspec.structs.replace(asked.metadata, annotations=written)
    spec = msgspec.structs.replace(asked.spec, node_name="n")
    bound = msgspec.structs.replace(asked, metadata=meta, spec=spec)
    share = pod_annotations.share_of(bound, inventory)
    assert share.cards == tuple(card.uuid for card in inventory.cards[:count])
    assert share.units == wanted.units_per_card
