"""What reads as enough memory is enough."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.text.amounts import free_gib, needed_gib

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
    ],
)
def test_an_amount_reads_as_gib_with_at_most_one_decimal(mib: int, free: str, needed: str) -> None:
    assert (free_gib(mib), needed_gib(mib)) == (free, needed)


def _mib(text: str) -> Decimal:
    number, unit = text.split()
    return Decimal(number) * (1024 if unit == "GiB" else 1)


@given(AMOUNTS)
def test_free_memory_is_never_overstated_and_needs_are_never_understated(mib: int) -> None:
    assert _mib(free_gib(mib)) <= mib <= _mib(needed_gib(mib))
