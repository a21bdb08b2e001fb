"""A reader sees every name that changed since its last read, or learns that it must read all."""

from hypothesis import given
from hypothesis import strategies as st

from gpushare.ledger import changes
from gpushare.ledger.changes import Changes


@given(st.lists(st.sampled_from("abcde") | st.none(), max_size=60), st.integers(1, 6))
def test_a_reader_never_misses_a_change(steps, kept):
    log, seen, pending = Changes(), 0, set()
    before, changes.KEPT = changes.KEPT, kept
    try:
        for name in steps:
            if name is not None:
                log.add(name)
                pending.add(name)
                continue
            found = log.since(seen)
            assert found is None or sorted(found) == sorted(pending)
            assert found is not None or kept < 5
            seen, pending = log.now, set()
    finally:
        changes.KEPT = before


def test_nothing_has_changed_since_now():
    log = Changes()
    log.add("a")
    assert list(log.since(log.now)) == []
    assert list(log.since(0)) == ["a"]
