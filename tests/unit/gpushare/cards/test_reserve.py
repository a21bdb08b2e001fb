"""What each GPU keeps unshared."""

import pytest

from gpushare.cards.reserve import parse_reserve
from gpushare.errors import SettingsError


@pytest.mark.parametrize(
    ("text", "mib"),
    [("0", 0), ("512Mi", 512), ("1Gi", 1024), ("3%", 2447), ("0.5%", 408), ("0%", 0)],
)
def test_a_reserve_is_an_amount_or_a_part_of_the_gpu(text, mib):
    assert parse_reserve(text).of(81_559) == mib


@pytest.mark.parametrize("text", ["", "512", "512MiB", "-1%", "100%", "3 %", "1e3Mi", "٣%", "none"])
def test_anything_else_is_an_error_that_says_what_to_write(text):
    with pytest.raises(SettingsError, match="write an amount such as 512Mi"):
        parse_reserve(text)
