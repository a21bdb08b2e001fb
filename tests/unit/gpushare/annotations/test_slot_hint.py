"""A slot annotation is a hint: written by the extender, or by anybody."""

from hypothesis import given
from hypothesis import strategies as st

from gpushare.annotations import slot_hint
from gpushare.contract import ANNOTATION_SLOT
from tests.builders import pod


@given(st.from_regex(r"[a-z][a-z0-9.-]{0,60}", fullmatch=True), st.lists(st.text(), max_size=16))
def test_a_hint_is_read_as_it_was_written(node, cards):
    written = slot_hint.encode(node, cards)
    assert slot_hint.hinted_node(pod(annotations={ANNOTATION_SLOT: written})) == node


@given(st.text() | st.sampled_from(["", "{}", '{"node":1}', '{"node":null}', "[" * 5000]))
def test_what_a_user_wrote_instead_is_no_hint(text):
    assert slot_hint.hinted_node(pod(annotations={ANNOTATION_SLOT: text})) in ("", text)
    assert slot_hint.hinted_node(pod()) == ""
