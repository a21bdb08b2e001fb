"""What filter answers: every node in one part of it, or the best few alone."""

from hypothesis import given
from hypothesis import strategies as st

from extender.decisions.filter import filter_nodes, reject_all
from extender.decisions.prioritize import in_order
from gpushare.placement.reasons import COOLING, NO_CARDS, NO_ROOM, TOO_LARGE
from gpushare.placement.verdict_cache import Verdicts

NAMES = [f"n{i}" for i in range(8)]
VERDICTS = st.lists(
    st.tuples(
        st.sampled_from(NAMES),
        st.one_of(
            st.tuples(
                st.integers(0, 1), st.sampled_from([-20.0, 0.0, 1.0, 9.0, 20.0]), st.just(0.0)
            ),
            st.sampled_from([NO_ROOM, TOO_LARGE, NO_CARDS]),
        ),
    ),
    max_size=8,
    unique_by=lambda pair: pair[0],
)


def known(pairs):
    found = ((name, (*v, name) if isinstance(v, tuple) else v) for name, v in pairs)
    return Verdicts(0, found)


@given(
    VERDICTS,
    st.lists(st.sampled_from([*NAMES, "stranger"])),
    st.integers(0, 4),
    st.dictionaries(st.sampled_from(NAMES), st.integers(1, 3)),
    st.tuples(st.sets(st.sampled_from(NAMES)), st.sampled_from([None, *NAMES])),
)
def test_no_node_that_fits_is_refused_and_none_that_does_not_is_offered(
    pairs, asked, few, last, aside
):
    cooling, nominated = aside
    verdicts = known(pairs)
    found = filter_nodes(asked, verdicts, few=few, last=last, cooling=cooling, nominated=nominated)
    fit = set(asked) & set(verdicts.fits)
    well = fit - cooling
    offered = set(found.fitting)
    assert offered <= (well or fit)
    assert bool(offered) == bool(fit)
    assert (found.best in offered) if fit else not found.best
    if found.is_short:
        assert len(offered) <= few
        assert offered < (well or fit)
        assert (found.failed, found.final) == ({}, {})
        return
    assert offered == (well or fit)
    assert offered | {*found.failed} | {*found.final} == set(asked)
    assert not offered & {*found.failed, *found.final}
    rejected = found.failed | found.final
    assert {name for name, text in rejected.items() if text == COOLING.text} == fit - offered
    # kube-scheduler tries a pod again without end if it looks for victims on a node it asks about.
    assert {*found.failed} <= {nominated}
    if rejected.get(nominated) == NO_ROOM.text:
        assert nominated in found.failed


@given(VERDICTS, st.lists(st.sampled_from([*NAMES, "stranger"]), unique=True), st.integers(1, 4))
def test_what_filter_likes_best_prioritize_does_too(pairs, asked, few):
    verdicts = known(pairs)
    last = dict.fromkeys(NAMES[:2], 1)
    found = filter_nodes(asked, verdicts, few=few, last=last)
    if not found.best:
        return
    order = in_order(found.fitting, verdicts, last)
    assert sorted(order) == sorted(found.fitting)
    # What only fits while others do not come is never offered beside what fits for sure.
    is_late = {verdicts.fits[name][0] for name in found.fitting}
    if found.is_short or len(is_late) == 1:
        assert order[0] == found.best


@given(VERDICTS, st.lists(st.sampled_from([*NAMES, "stranger"])))
def test_the_order_has_every_node_once_those_that_fit_first(pairs, asked):
    verdicts = known(pairs)
    order = in_order(asked, verdicts)
    assert sorted(order) == sorted(set(asked))
    fits = [name in verdicts.fits for name in order]
    assert fits == sorted(fits, reverse=True)


def test_a_request_that_is_refused_is_refused_everywhere():
    assert reject_all(["a", "b"], "why").final == {"a": "why", "b": "why"}
