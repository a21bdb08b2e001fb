"""An overlay behaves like a copy and leaves its base unchanged."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.ledger.overlay import Overlay

KEYS = st.integers(0, 5)
CHANGES = st.lists(st.tuples(st.sampled_from(["set", "pop", "default"]), KEYS, st.integers()))


@given(base=st.dictionaries(KEYS, st.integers()), changes=CHANGES)
def test_an_overlay_behaves_like_a_copy(base, changes):
    before, copy = dict(base), dict(base)
    layer = Overlay(base)
    for what, key, value in changes:
        for mapping in (layer, copy):
            if what == "set":
                mapping[key] = value
            elif what == "pop":
                mapping.pop(key, None)
            else:
                mapping.setdefault(key, value)
        assert dict(layer) == copy
        assert len(layer) == len(copy)
        assert all((key in layer) == (key in copy) for key in range(6))
    assert base == before


def test_deleting_an_absent_key_is_an_error():
    layer = Overlay({1: 2})
    del layer[1]
    for key in (1, 3):
        with pytest.raises(KeyError):
            del layer[key]
        with pytest.raises(KeyError):
            _ = layer[key]
