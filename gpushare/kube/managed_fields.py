"""Reads JSON of the API server that is nested deeper than the decoder goes (pure).

``metadata.managedFields`` is the one part of a Pod or Node whose depth is for its writer to choose:
the API server takes 10,000 levels, and the decoder gives up at 1,000 of Python 3.11. One such pod
would end the watch and the list of all others, for as long as it is there.
"""

from collections.abc import Callable
from typing import Final, TypeVar

# The API server writes them last in metadata (the order of ObjectMeta in apimachinery), and
# whatever it writes without spaces. A quote inside of a string is never bare, and a key inside of
# fieldsV1 begins with a letter and a colon, so neither of the two is found anywhere else.
_BEGIN: Final = b'"managedFields":['
_END: Final = b']},"spec":{'

T = TypeVar("T")


def decoded(decode: Callable[[bytes], T], body: bytes) -> T:
    """Return ``decode(body)``, without managed fields if they are nested too deep.

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
