"""Until when a certificate holds, read from its bytes (pure): the standard library has no way.

RFC 5280, 4.1: Certificate and its validity; X.690 for the encoding (DER).
"""

import base64
import binascii
import datetime as dt
import re
from typing import Final

from gpushare.errors import RecordError

_SEQUENCE: Final = 0x30
_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17
_GENERALIZED_TIME: Final = 0x18
_LONG: Final = 0x80
_PEM: Final = re.compile(
    rb"-----BEGIN CERTIFICATE-----\s+(.+?)-----END CERTIFICATE-----", re.DOTALL
)


def ends(der: bytes) -> dt.datetime:
    """The notAfter of a certificate; RecordError where it cannot be read."""
    try:
        body = _part(_part(der, 0, _SEQUENCE)[0], 0, _SEQUENCE)[0]
        place = _part(body, 0, _VERSION)[1] if body[0] == _VERSION else 0
        for _ in ("serial number", "signature", "issuer"):
            place = _part(body, place)[1]
        validity = _part(body, place, _SEQUENCE)[0]
        after = _part(validity, 0)[1]
        written = _part(validity, after)[0].decode("ascii")
        # Two digits of a year are of 1950 to 2049: RFC 5280, 4.1.2.5.1.
        if validity[after] == _UTC_TIME:
            written = ("20" if int(written[:2]) < 50 else "19") + written  # noqa: PLR2004
        elif validity[after] != _GENERALIZED_TIME:
            raise RecordError("the certificate cannot be read: its end is no time")
        return dt.datetime.strptime(written, "%Y%m%d%H%M%SZ").replace(tzinfo=dt.UTC)
    except (IndexError, ValueError) as err:
        raise RecordError(f"the certificate cannot be read: {err}") from err


def first_of(pem: bytes) -> bytes:
    """The bytes of the first certificate in a PEM file; RecordError where there is none."""
    match = _PEM.search(pem)
    try:
        return base64.b64decode(match[1]) if match else _no_certificate()
    except binascii.Error as err:
        raise RecordError(f"the certificate cannot be read: {err}") from err


def _no_certificate() -> bytes:
    raise RecordError("there is no certificate in it")


def _part(data: bytes, place: int, kind: int | None = None) -> tuple[bytes, int]:
    """What is in the element at ``place``, and where the next one begins."""
    if kind is not None and data[place] != kind:
        raise ValueError(f"0x{data[place]:02x} where 0x{kind:02x} was to be")
    length, start = data[place + 1], place + 2
    if length & _LONG:
        start += length & ~_LONG
        length = int.from_bytes(data[place + 2 : start], "big")
    if start + length > len(data):
        raise ValueError("it is cut off")
    return data[start : start + length], start + length
