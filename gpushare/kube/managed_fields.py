"""Decode JSON of the API server that is nested deeper than the decoder supports (pure).

``metadata.managedFields`` is the only part of a Pod or Node whose depth its writer chooses. The API
server accepts 10,000 levels, and the decoder fails at 1,000 in Python 3.11: one such pod would
break lists and watches for as long as it exists.
"""

from collections.abc import Callable
from typing import Final, TypeVar

# The API server writes them last in metadata (the order of ObjectMeta in apimachinery), without
# spaces. Quotes inside strings are escaped, and keys in fieldsV1 begin with a letter and a colon,
# so these two byte strings occur nowhere else.
_BEGIN: Final = b'"managedFields":['
_END: Final = b']},"spec":{'

T = TypeVar("T")


def decoded(decode: Callable[[bytes], T], body: bytes) -> T:
    """Return ``decode(body)``, without managed fields if they are nested too deeply.

    Raises one of UNDECODABLE.
    """
    try:
        return decode(body)
    except RecursionError:
        return decode(without_managed_fields(body))


def without_managed_fields(body: bytes) -> bytes:
    """Return the JSON of one object, or of a list of them, with every managedFields empty."""
    kept: list[bytes] = []
    at = 0
    while (begin := body.find(_BEGIN, at)) >= 0:
        end = body.find(_END, begin)
        if end < 0:
            break
        kept.append(body[at : begin + len(_BEGIN)])
        at = end
    return b"".join((*kept, body[at:]))
