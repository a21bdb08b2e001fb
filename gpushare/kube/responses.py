"""Read the API server's responses: bodies of bounded size, and error statuses as ApiErrors."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from http import HTTPStatus
from typing import Final, TypeVar

import aiohttp
import msgspec

from gpushare.errors import (
    UNDECODABLE,
    ApiError,
    Conflict,
    Gone,
    NotFound,
    OutcomeUnknown,
    Replaced,
    TooLarge,
)
from gpushare.kube.managed_fields import decoded

_DIGITS: Final = 4  # of a Retry-After header
_UID: Final = "metadata.uid"
_CLIENT_ERRORS: Final = range(400, 500)
BY_CODE: Final[dict[int, type[ApiError]]] = {
    HTTPStatus.NOT_FOUND: NotFound,
    HTTPStatus.CONFLICT: Conflict,
    HTTPStatus.GONE: Gone,
}

T = TypeVar("T")


class _Cause(msgspec.Struct):
    field: str = ""


class _Details(msgspec.Struct):
    causes: list[_Cause] | None = None


class _Status(msgspec.Struct):
    message: str = ""
    reason: str = ""
    details: _Details | None = None

    @property
    def is_about_the_uid(self) -> bool:
        """Return whether a patch named another uid, which would be a change of the uid."""
        causes = (self.details and self.details.causes) or ()
        return any(each.field == _UID for each in causes)


_decode_status = msgspec.json.Decoder(_Status).decode


async def whole(content: aiohttp.StreamReader, most: int) -> bytes:
    """Return the whole body; raise TooLarge once more than ``most`` bytes have arrived."""
    parts: list[bytes] = []
    size = 0
    async for part in content.iter_any():
        size += len(part)
        if size > most:
            raise TooLarge(f"the answer has more than {most} bytes")
        parts.append(part)
    return b"".join(parts)


async def until_idle(
    content: aiohttp.StreamReader, idle_seconds: float
) -> AsyncGenerator[bytes, None]:
    """Yield parts as they arrive; raise TimeoutError after ``idle_seconds`` without one."""
    while True:
        # wait_for loses a cancellation that comes with a part, before Python 3.12.
        async with asyncio.timeout(idle_seconds):
            part = await content.readany()
        if not part:
            return
        yield part


async def lines(parts: AsyncIterator[bytes], most: int) -> AsyncGenerator[bytes, None]:
    """Yield each line without its end; raise TooLarge once one has more than ``most`` bytes.

    At most one line and the part in which it ends are kept in memory.
    """
    begun: list[bytes] = []
    size = 0
    async for part in parts:
        *ends, rest = part.split(b"\n")
        for end in ends:
            if size + len(end) > most:
                raise TooLarge(f"a line has more than {most} bytes")
            begun.append(end)
            yield b"".join(begun)
            begun, size = [], 0
        if rest:
            begun.append(rest)
            size += len(rest)
        if size > most:
            raise TooLarge(f"a line has more than {most} bytes")
    if begun:
        yield b"".join(begun)


def decode(decoder: Callable[[bytes], T], body: bytes) -> T:
    """Return the object in a body; raise ApiError if it cannot be decoded."""
    try:
        return decoded(decoder, body)
    except UNDECODABLE as err:
        raise ApiError(f"the API server's answer cannot be read: {err}") from err


def error(response: aiohttp.ClientResponse, body: bytes, method: str, path: str) -> ApiError:
    code = response.status
    try:
        status = _decode_status(body)
    except UNDECODABLE:
        status = _Status(body[:256].decode(errors="replace"))
    text = f"{method} {path}: {code} {status.reason}: {status.message}"
    # A proxy's redirect or timeout does not reveal the outcome of the request behind it.
    is_open = code == HTTPStatus.REQUEST_TIMEOUT or code not in _CLIENT_ERRORS
    kind = OutcomeUnknown if is_open else BY_CODE.get(code, ApiError)
    if code == HTTPStatus.UNPROCESSABLE_ENTITY and status.is_about_the_uid:
        kind = Replaced
    retry_after = _seconds(response.headers.get("Retry-After", ""))
    return kind(text, code=code, reason=status.reason, retry_after=retry_after)


def _seconds(retry_after: str) -> float:
    """Return the seconds in a Retry-After header; 0 for a date: the API server sends none."""
    is_number = retry_after.isascii() and retry_after.isdigit() and len(retry_after) <= _DIGITS
    return float(retry_after) if is_number else 0.0
