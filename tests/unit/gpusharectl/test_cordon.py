"""Which cards take nothing new: what is written, what is refused, who is still there."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.annotations.inventory import cordon_reasons, with_cordons
from gpushare.contract import (
    ANNOTATION_ASSIGNED,
    ANNOTATION_CARDS,
    ANNOTATION_CORDONED_CARDS,
    ANNOTATION_INDEX,
    ANNOTATION_INVENTORY,
)
from gpushare.errors import SettingsError
from gpushare.objects.model import Node, ObjectMeta
from gpusharectl import cordon
from tests.builders import annotated, cards, legacy_node, node, pod, stock


def written(seen: Node, change: cordon.Change) -> Node:
    """The node as the API server has it after the merge patch."""
    after = {**seen.annotations, **change.annotations}
    kept = {key: value for key, value in after.items() if value is not None}
    return msgspec.structs.replace(
        seen, metadata=msgspec.structs.replace(seen.metadata, annotations=kept)
    )


def apply(seen: Node, *names: str, is_cordon: bool = True, **more) -> Node:
    found = cordon.cards_of(seen)
    chosen = cordon.choose(found.cards, names)
    return written(seen, cordon.plan(seen, found, chosen, is_cordon=is_cordon, **more))


def cordoned(seen: Node) -> set[int]:
    """What the extender reads from the node."""
    found = with_cordons(cordon.cards_of(seen), seen)
    return {card.index for card in found.cards if card.is_cordoned}


@given(st.lists(st.tuples(st.booleans(), st.sets(st.integers(0, 3), min_size=1)), max_size=8))
def test_a_card_is_cordoned_if_and_only_if_the_last_command_about_it_said_so(steps):
    seen, wanted = node("n1", 8, 8, 8, 8), set()
    for is_cordon, indexes in steps:
        seen = apply(seen, *map(str, indexes), is_cordon=is_cordon)
        wanted = wanted | indexes if is_cordon else wanted - indexes
        assert cordoned(seen) == wanted
    if not wanted:
        assert ANNOTATION_CORDONED_CARDS not in seen.annotations


@pytest.mark.parametrize("name", ["1", "GPU-1"])
def test_doing_it_twice_changes_nothing_the_second_time(name):
    seen = apply(node("n1", 8, 8), name, reason="XID 79")
    found = cordon.cards_of(seen)
    change = cordon.plan(seen, found, cordon.choose(found.cards, [name]), is_cordon=True)
    assert not change.needed(seen)
    assert [card.index for card in change.unchanged] == [1]


def test_a_card_is_meant_by_index_uuid_or_the_beginning_of_one_uuid_alone():
    there = (*cards(8, prefix="GPU-5a3c"), *cards(8, prefix="GPU-5a77"))
    assert cordon.choose(there[:1], ["0", "GPU-5a3c-0", "GPU-5a3"]) == there[:1]
    with pytest.raises(SettingsError, match=r"beginning of 2 GPUs.*GPU-5a3c-0.*GPU-5a77-0"):
        cordon.choose(there, ["GPU-5a"])


@pytest.mark.parametrize("name", ["7", "GPU-x", "", "-1", "0x0", "\u0661"])
def test_a_card_that_the_node_does_not_have_is_refused_with_those_that_it_has(name):
    with pytest.raises(SettingsError, match=r"no GPU of the node; its GPUs are 0 \(GPU-0\)"):
        cordon.choose(cards(8), [name])


def test_a_whole_uuid_is_that_card_though_it_is_the_beginning_of_another():
    there = (*cards(8, prefix="GPU"), *cards(8, prefix="GPU-0"))
    assert cordon.choose(there, ["GPU-0"]) == there[:1]


def test_names_of_no_card_are_refused_and_dropped_only_on_demand():
    seen = apply(node("n1", 8, 8), "0")
    text = f"{seen.annotations[ANNOTATION_CORDONED_CARDS]},GPU-gone"
    seen = annotated(seen, {ANNOTATION_CORDONED_CARDS: text})
    with pytest.raises(SettingsError, match=r"'GPU-gone'.*--replace"):
        apply(seen, "1")
    assert cordoned(apply(seen, "1", replaces=True)) == {0, 1}


def test_a_reason_stands_as_long_as_its_card_is_cordoned():
    seen = apply(node("n1", 8, 8), "0", reason="fan")
    seen = apply(seen, "1")
    assert cordon_reasons(seen) == {"GPU-0": "fan"}
    assert cordon_reasons(apply(seen, "0", is_cordon=False)) == {}


def test_cards_of_an_older_plugin_can_be_cordoned():
    assert cordoned(apply(legacy_node("old", 16, 2), "1")) == {1}


@pytest.mark.parametrize(
    ("annotations", "text"),
    [({}, "shares no GPU"), ({ANNOTATION_INVENTORY: "{"}, "cannot be read")],
)
def test_a_node_without_readable_cards_is_refused(annotations, text):
    with pytest.raises(SettingsError, match=text):
        cordon.cards_of(Node(ObjectMeta(name="n", annotations=annotations)))


def test_who_still_holds_a_share_is_told_with_those_that_may():
    found = stock(8, 8, unit_mib=1024)
    on_node = [
        pod("b", 3, node="n1", annotations={ANNOTATION_CARDS: "GPU-1"}),
        pod("elsewhere", 3, node="n1", annotations={ANNOTATION_CARDS: "GPU-0"}),
        pod("a", 2, node="n1"),
        pod("over", 2, node="n1", phase="Succeeded"),
    ]
    assert cordon.holders(found, found.cards[1:], on_node) == [
        "default/a: 2 GiB of an unknown GPU",
        "default/b: 3 GiB of GPU 1",
    ]
    legacy = cordon.cards_of(legacy_node("old", 16, 2))
    index = {ANNOTATION_INDEX: "1", ANNOTATION_ASSIGNED: "true"}
    on_legacy = [pod("b", 3, node="old", annotations=index)]
    assert cordon.holders(legacy, legacy.cards[1:], on_legacy) == ["default/b: 3 units of GPU 1"]
