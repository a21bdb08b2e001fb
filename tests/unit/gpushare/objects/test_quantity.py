"""Amounts have the value that Kubernetes defines, or are an error; never zero by mistake."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.errors import QuantityError
from gpushare.objects.quantity import MAX_UNITS, parse_units


@pytest.mark.parametrize(
    ("text", "units"),
    [
        ("8000", 8000),
        ("8k", 8000),
        ("100k", 100_000),
        ("8Gi", 8 * 2**30),
        ("1e3", 1000),
        ("1.5k", 1500),
        ("2000m", 2),
        ("0", 0),
        ("-0", 0),
        ("+7", 7),
        (8, 8),
        (".5k", 500),
        ("9223372036854775807", MAX_UNITS),
    ],
)
def test_an_amount_is_read_as_the_api_server_writes_it(text, units):
    assert parse_units(text) == units


RUBBISH = (
    """x -1 1500m 0.5 8GB 8gi 1e 9223372036854775808 1e400 1e999 ٣ NaN inf 0x10 1_000 --1 E i"""
)


@pytest.mark.parametrize("text", [*RUBBISH.split(), "", "8 ", " 8", "8\n", "1" * 65])
def test_anything_but_a_whole_number_of_units_is_an_error(text):
    with pytest.raises(QuantityError):
        parse_units(text)


@given(st.integers(0, MAX_UNITS))
def test_whole_numbers_are_kept(amount):
    assert parse_units(str(amount)) == amount


@given(st.text(max_size=80) | st.from_regex(r"[+-]?[0-9.]{0,30}([eE]?[0-9kMGTPEnum]{0,4}i?)"))
def test_any_text_is_an_amount_or_a_short_error(text):
    try:
        amount = parse_units(text)
    except QuantityError as err:
        problem = str(err)
    else:
        assert 0 <= amount <= MAX_UNITS
        return
    assert len(problem) < 300
