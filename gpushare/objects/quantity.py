"""Parse Kubernetes quantities into whole units.

The API server rewrites amounts to a canonical form: 8000 reads back as ``"8k"`` and 100000 as
``"100k"``. The grammar is apimachinery's ``pkg/api/resource/quantity.go``.
"""

import re
from fractions import Fraction
from typing import Final

from gpushare.errors import QuantityError

_QUANTITY: Final = re.compile(
    r"(?P<sign>[+-]?)(?P<number>[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
    r"(?:(?P<suffix>[KMGTPE]i|[numkMGTPE])|[eE](?P<exponent>[+-]?[0-9]{1,3}))?",
    re.ASCII,
)
_BINARY: Final = {f"{letter}i": 1 << (10 * power) for power, letter in enumerate("KMGTPE", 1)}
_DECIMAL: Final = {letter: Fraction(10) ** (3 * power) for power, letter in enumerate("kMGTPE", 1)}
_SMALL: Final = {"m": Fraction(1, 10**3), "u": Fraction(1, 10**6), "n": Fraction(1, 10**9)}
_SCALES: Final[dict[str, Fraction | int]] = {**_BINARY, **_DECIMAL, **_SMALL}

MAX_UNITS: Final = 2**63 - 1
# No node has more: 1024 cards of a TiB in units of a MiB. The kubelet's list of devices, of at most
# 4 MiB, ends far below.
MOST_NODE_UNITS: Final = 2**30
_PLAIN: Final = 18  # any number with so many digits is below MAX_UNITS
_LONGEST: Final = 64  # the API server's canonical forms are far shorter


def parse_quantity(text: str | int) -> Fraction | int:
    """Return the exact amount of a quantity; raise QuantityError for an invalid one."""
    written = str(text)
    if len(written) <= _PLAIN and written.isascii() and written.isdigit():
        return int(written)  # the common case: filter parses one in each call
    match = _QUANTITY.fullmatch(written) if len(written) <= _LONGEST else None
    if match is None:
        shown = written if len(written) <= _LONGEST else written[:_LONGEST] + "..."
        raise QuantityError(
            f"{shown!r} is not a Kubernetes quantity: write a whole number of units"
        )
    amount = Fraction(match["number"])
    if match["suffix"]:
        amount *= _SCALES[match["suffix"]]
    elif match["exponent"]:
        amount *= Fraction(10) ** int(match["exponent"])
    return -amount if match["sign"] == "-" else amount


def parse_units(text: str | int) -> int:
    """Return the number of units of a quantity.

    Raises QuantityError for an invalid quantity, a fraction of a unit, a negative amount and an
    amount above 2**63 - 1.
    """
    amount = parse_quantity(text)
    if amount < 0:
        raise QuantityError(f"{text} is negative: write a whole number of units")
    if amount.denominator != 1:
        raise QuantityError(f"{text} is not a whole number of units: units cannot be divided")
    if amount > MAX_UNITS:
        raise QuantityError(f"{text} is more units than Kubernetes can count")
    return amount.numerator
