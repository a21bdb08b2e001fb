"""The table that compares policies."""

from hypothesis import given
from hypothesis import strategies as st

from gpusharectl.policies.kinds import Kind
from gpusharectl.policies.left import Left, TooLittle
from gpusharectl.policies.table import largest_difference, rows_of, table

WHISPER = Kind("ml", "whisper", 0, 8, 1, 40)
LLAMA = Kind("default", "llama", 2, 40, 2, 3)
NAMES = ("binpack", "spread")


def left(*too_little, free=3):
    return Left(100, 82, free, 5, 0.25, tuple(TooLittle(gpus, 3 * gpus) for gpus in too_little))


def test_each_policy_has_a_column():
    shown = table(NAMES, rows_of([left(31, 2), left(24, 2, free=10)], (WHISPER, LLAMA), 1024))
    assert [line.plain for line in shown] == [
        "                                               binpack       spread",
        "GPU memory used                                  82.0%        82.0%",
        "GPUs entirely free                                   3           10",
        "free, but too little for any pod                 5 GiB        5 GiB",
        "GPUs with free memory, but too little for",
        "  ml/whisper (8 GiB)                       31 (93 GiB)  24 (72 GiB)",
        "  llama and 2 others (2 GPUs of 40 GiB)      2 (6 GiB)    2 (6 GiB)",
    ]


def test_the_kind_with_the_largest_difference_is_said_in_a_sentence():
    found = largest_difference(NAMES, [left(31, 2), left(24, 3)], (WHISPER, LLAMA), 1024)
    assert found == (
        "binpack leaves 31 GPUs with too little free memory for ml/whisper (8 GiB), spread 24."
    )


@given(st.integers(0, 9), st.integers(0, 9))
def test_a_policy_and_itself_do_not_differ(one, two):
    assert not largest_difference(NAMES, [left(one, two)] * 2, (WHISPER, LLAMA), 1024)
    assert not largest_difference(NAMES, [left()] * 2, (), 1024)
