"""YAML without harm is loaded as PyYAML loads it."""

import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpushare.text import bounded_yaml

SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=20)
VALUES = st.recursive(SCALARS, lambda below: st.lists(below) | st.dictionaries(st.text(), below))


@given(VALUES, VALUES)
def test_documents_and_their_aliases_are_loaded_as_they_are(once: object, twice: object) -> None:
    text = yaml.safe_dump([once, twice, twice])
    assert bounded_yaml.load(text) == yaml.safe_load(text)


def test_an_empty_text_has_no_value() -> None:
    assert bounded_yaml.load("# only a comment") is None
