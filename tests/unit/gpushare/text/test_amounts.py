"""What reads as enough memory is enough."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.text.amounts import free_gib, needed_gib, used_gib

AMOUNTS = st.integers(0, 2**40)


@pytest.mark.parametrize(
    ("mib", "free", "needed"),
    [
        (0, "0 GiB", "0 GiB"),
        (1, "1 MiB", "1 MiB"),
        (512, "512 MiB", "512 MiB"),
        (1024, "1 GiB", "1 GiB"),
        (8 * 1024, "8 GiB", "8 GiB"),
        (60_000, "58.5 GiB", "58.6 GiB"),
        (81_920, "80 GiB", "80 GiB"),
        (1023, "1023 MiB", "1023 MiB"),
        (2047, "1.9 GiB", "2 GiB"),
        (1_023_999, "999.9 GiB", "1,000 GiB"),
        (1_264_000, "1,234.3 GiB", "1,234.4 GiB"),
    ],
)
def test_an_amount_reads_as_gib_with_at_most_one_decimal(mib: int, free: str, needed: str) -> None:
    assert (free_gib(mib), needed_gib(mib)) == (free, needed)


def _mib(text: str) -> Decimal:
    number, unit = text.split()
    return Decimal(number.replace(",", "")) * (1024 if unit == "GiB" else 1)


@given(AMOUNTS)
def test_free_memory_is_never_overstated_and_needs_are_never_understated(mib: int) -> None:
    assert _mib(free_gib(mib)) <= mib <= _mib(needed_gib(mib))


@given(AMOUNTS, AMOUNTS)
def test_what_is_used_and_what_is_left_make_up_the_total(used: int, left: int) -> None:
    total = used + left
    shown = _mib(used_gib(used, total))
    assert shown <= _mib(free_gib(total))
    assert abs(shown - used) <= Decimal("102.4")
    if used >= 1024 <= left:
        assert shown + _mib(free_gib(left)) == _mib(free_gib(total))


def test_more_than_there_is_reads_as_more() -> None:
    assert used_gib(2048, 1024) == "2 GiB"
