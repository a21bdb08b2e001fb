"""Durations are whole units, rounded down."""

import pytest

from gpushare.text.durations import short


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "0s"),
        (0.9, "0s"),
        (119, "119s"),
        (120, "2m"),
        (7199, "119m"),
        (7200, "2h"),
        (172_799, "47h"),
        (172_800, "2d"),
        (1e9, "11574d"),
    ],
)
def test_a_duration_has_two_of_its_unit_at_least(seconds, text):
    assert short(seconds) == text
