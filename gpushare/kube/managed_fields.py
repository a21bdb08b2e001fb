"""Decode JSON of the API server that is nested deeper than the decoder supports (pure).

``metadata.managedFields`` is the only part of a Pod, Node or PodGroup whose depth its writer
chooses. The API server accepts 10,000 levels, and the decoder fails at 1,000 in Python 3.11: one
such object would break lists and watches for as long as it exists.
"""

import re
from collections.abc import Callable
from typing import Final, TypeVar

# The API server writes them without spaces: last in metadata (the order of ObjectMeta in
# apimachinery), or, in custom resources, before the name, because it sorts their keys. Quotes
# inside strings are escaped, and keys in fieldsV1 begin with a letter and a colon, so the first of
# these ends does not occur before the end of the managed fields.
_BEGIN: Final = b'"managedFields":['
_ENDS: Final = re.compile(rb'\]\},"spec":\{|\],"name":"')

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
        end = _ENDS.search(body, begin)
        if end is None:
            break
        kept.append(body[at : begin + len(_BEGIN)])
        at = end.start()
    return b"".join((*kept, body[at:]))
