"""The order in which entries are handed out, however namespaces use more in the meantime."""

from hypothesis import given
from hypothesis import strategies as st

from gpushare.quota.order import Given, QueueOrder, Standing

NAMESPACES = ("a", "b", "c")

standings = st.lists(
    st.builds(
        Standing,
        st.integers(-1, 1),
        st.sampled_from(Given),
        st.sampled_from(NAMESPACES),
        st.sampled_from(("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z")),
        st.text("xyz", min_size=1, max_size=3),
    ),
    max_size=12,
    unique_by=lambda each: each.owner,
)
uses = st.lists(st.tuples(st.sampled_from(NAMESPACES), st.integers(0, 3)), max_size=12)


@given(standings, uses, st.sampled_from(("fair", "fifo")))
def test_each_entry_is_the_first_of_those_that_are_left_at_that_moment(entries, used, policy):
    shares = dict.fromkeys(NAMESPACES, 0.0)
    order = QueueOrder(policy, shares.__getitem__)
    for standing in entries:
        order.put(standing, standing.owner)
    left = {standing.owner: standing for standing in entries}
    growing = iter(used)
    while (found := order.pop()) is not None:
        standing, entry = found
        assert entry == standing.owner
        assert order.key(standing) == min(map(order.key, left.values()))
        del left[entry]
        namespace, more = next(growing, ("a", 0))
        shares[namespace] += more  # as if what was handed out had got room
    assert not left


@given(standings)
def test_priority_comes_before_everything_and_a_started_gang_before_others_of_its_priority(entries):
    shares = {"a": 0.1, "b": 0.5, "c": float("inf")}
    order = QueueOrder("fair", shares.__getitem__)
    for standing in entries:
        order.put(standing, None)
    popped = []
    while (found := order.pop()) is not None:
        popped.append((-found[0].priority, found[0].given))
    assert popped == sorted(popped)
