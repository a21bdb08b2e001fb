"""What an administrator may write as a quota, and what is said about everything else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.errors import QuotaError
from gpushare.quota.quota import MOST_CHARACTERS, MOST_MODELS, MOST_UNITS, Quota, parse

MODELS = st.text(
    st.characters(exclude_characters=",", exclude_categories=("C", "Z")), min_size=1, max_size=20
)
AMOUNTS = st.integers(0, MOST_UNITS)
SPACES = st.text(" \t", max_size=2)


@pytest.mark.parametrize(
    ("text", "units", "models"),
    [
        ("64", 64, {}),
        ("0", 0, {}),
        ("007", 7, {}),
        (" 64 ", 64, {}),
        (str(MOST_UNITS), MOST_UNITS, {}),
        ("64,Tesla T4=16", 64, {"Tesla T4": 16}),
        ("Tesla T4=16,64", 64, {"Tesla T4": 16}),
        ("64 , Tesla T4 = 16 , A100=0", 64, {"Tesla T4": 16, "A100": 0}),
        ("Tesla T4=16", None, {"Tesla T4": 16}),
        ("a=b=16", None, {"a=b": 16}),
    ],
)
def test_a_quota_states_units_in_all_and_by_model(text, units, models):
    assert parse(text) == Quota(units, models)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "'' is not a whole number"),
        (" ", "'' is not a whole number"),
        ("64,", "'' is not a whole number"),
        (",64", "'' is not a whole number"),
        ("many", "'many' is not a whole number"),
        ("-1", "'-1' is not a whole number"),
        ("+1", "'+1' is not a whole number"),
        ("1.5", "'1.5' is not a whole number"),
        ("1e3", "'1e3' is not a whole number"),
        ("64Gi", "'64Gi' is not a whole number"),
        ("6 4", "'6 4' is not a whole number"),
        ("1_000", "'1_000' is not a whole number"),
        ("\u0661\u0662", r"'\u0661\u0662' is not a whole number"),
        ("\u00b2", r"'\xb2' is not a whole number"),
        (str(MOST_UNITS + 1), f"'{MOST_UNITS + 1}' is not a whole number"),
        ("9" * 5000, "is not a whole number"),
        ("64,32", "states the units of all GPUs twice"),
        ("64,Tesla T4=", "'Tesla T4=' is not a whole number"),
        ("64,Tesla T4", "'Tesla T4' is not a whole number"),
        ("64,=16", "lacks a model's name"),
        ("64, =16", "lacks a model's name"),
        ("T4=1,T4=2", "names a model twice"),
        ("T4=1, T4 =2", "names a model twice"),
    ],
)
def test_what_cannot_be_read_is_never_a_number_and_says_what_to_write(text, said):
    with pytest.raises(QuotaError) as raised:
        parse(text)
    assert said in str(raised.value)
    assert "write units such as 64, or 64,Tesla T4=16" in str(raised.value)
    assert len(str(raised.value)) < 500


def test_a_text_that_is_too_long_or_names_too_many_models_is_not_read():
    with pytest.raises(QuotaError, match="name fewer models"):
        parse("x" * MOST_CHARACTERS + "=1")
    most = [f"m{number}=1" for number in range(MOST_MODELS)]
    assert len(parse(",".join(most)).models) == MOST_MODELS
    with pytest.raises(QuotaError, match=f"name at most {MOST_MODELS}"):
        parse(",".join([*most, "another=1"]))


@given(st.text())
def test_any_other_text_is_an_error_of_ours(text):
    try:
        found = parse(text)
    except QuotaError:
        return
    assert found.units is not None or found.models


@given(
    st.none() | AMOUNTS,
    st.dictionaries(MODELS, AMOUNTS, max_size=5),
    st.randoms(use_true_random=False),
    SPACES,
)
def test_what_is_written_is_what_is_read_in_any_order(units, models, order, spaces):
    if units is None and not models:
        return
    parts = [f"{model}{spaces}={amount}{spaces}" for model, amount in models.items()]
    parts += [] if units is None else [f"{spaces}{units}"]
    order.shuffle(parts)
    assert parse(",".join(parts)) == Quota(units, models)
