"""Random gangs, as in the long trial: none is planned or refused wrongly."""

from tests.trials.plans import MOST_GIVEN_UP, try_cases


def test_no_random_gang_is_planned_or_refused_wrongly():
    result = try_cases(80, seed=2)
    assert not result.wrong
    assert set(MOST_GIVEN_UP) == {kind for kind, _ in result.counts}
    assert {"planned", "refused"} <= {what for _, what in result.counts}
