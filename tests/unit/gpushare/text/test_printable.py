"""JSON whose text no terminal obeys, and which says the same."""

import json
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from gpushare.text.printable import printable
from gpushare.text.printable_json import printable_json

ANY = st.text(st.characters(exclude_categories=["Cs"]))


@given(ANY)
def test_json_has_the_same_text_without_what_a_terminal_obeys(text: str) -> None:
    encoded = printable_json({"a": text})
    assert json.loads(encoded) == {"a": text}
    assert printable(encoded.decode()) == encoded.decode()


@given(ANY)
def test_only_what_a_terminal_obeys_is_replaced(text: str) -> None:
    unsafe = {"Cc", "Cf", "Zl", "Zp"}
    assert printable(text) == "".join(
        "\N{REPLACEMENT CHARACTER}" if each not in "\n\t" and unicodedata.category(each) in unsafe
        else each
        for each in text
    )  # fmt: skip
