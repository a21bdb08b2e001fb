"""Read the quota that an administrator writes into an annotation of a namespace (pure)."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from gpushare.contract import ANNOTATION_QUOTA
from gpushare.errors import QuotaError

MOST_CHARACTERS: Final = 8 * 1024
MOST_MODELS: Final = 64
MOST_UNITS: Final = 2**31 - 1

_SHOWN: Final = 63
_DIGITS: Final = 10
_NO_MODELS: Final[Mapping[str, int]] = MappingProxyType({})
_EXAMPLE: Final = "write units such as 64, or 64,Tesla T4=16 to limit a model too"


class Quota(msgspec.Struct, frozen=True):
    """The units that all pods of a namespace may use at one time.

    ``units`` limits all GPUs together; None if only models are limited. ``models`` limits the GPUs
    of a model, by the model's name in the inventory.
    """

    units: int | None = None
    models: Mapping[str, int] = _NO_MODELS


NO_QUOTA: Final = Quota()


def parse(text: str) -> Quota:
    """Return the quota that an annotation states, such as ``64`` or ``64,Tesla T4=16``.

    Raises QuotaError, with a text for the administrator.
    """
    if len(text) > MOST_CHARACTERS:
        raise QuotaError(
            f"{ANNOTATION_QUOTA} has more than {MOST_CHARACTERS} characters: name fewer models"
        )
    units: int | None = None
    models: dict[str, int] = {}
    for part in text.split(","):
        model, separator, amount = (each.strip() for each in part.rpartition("="))
        number = _units(amount)
        if number is None:
            wrong = amount or part.strip()
            raise _wrong(text, f"{_shown(wrong)} is not a whole number from 0 to {MOST_UNITS}")
        if not separator:
            if units is not None:
                raise _wrong(text, "it states the units of all GPUs twice")
            units = number
        elif not model or model in models:
            raise _wrong(text, "it names a model twice" if model else "it lacks a model's name")
        else:
            models[model] = number
    if len(models) > MOST_MODELS:
        raise QuotaError(
            f"{ANNOTATION_QUOTA} names {len(models)} models: name at most {MOST_MODELS}"
        )
    return Quota(units, MappingProxyType(models) if models else _NO_MODELS)


def _units(text: str) -> int | None:
    if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS):
        return None
    return number if (number := int(text)) <= MOST_UNITS else None


def _wrong(text: str, why: str) -> QuotaError:
    return QuotaError(f"{ANNOTATION_QUOTA} is {_shown(text)}: {why}; {_EXAMPLE}")


def _shown(text: str) -> str:
    return ascii(text[:_SHOWN])
