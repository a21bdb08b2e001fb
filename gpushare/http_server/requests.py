"""Limits on what one request can cost: its body, its response, and a caller that takes none."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Final, TypeVar
from weakref import WeakValueDictionary

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler, Middleware

from gpushare.errors import UNDECODABLE, GpushareError

MAX_ERROR: Final = 300
# kube-scheduler hangs up after 5 s, and sends even 40 MiB over loopback within one.
BODY_SECONDS: Final = 5.0
SEND_SECONDS: Final = 10.0
STALLED_SECONDS: Final = 1.0  # between two looks at what a receiver has taken
SMALL: Final = 32 * 1024  # bytes of a response, half of what a connection buffers
_SHOWN: Final = 63

T = TypeVar("T")


class BadRequest(GpushareError):
    """The request cannot be used; answered with ``status``."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status


def problem(status: int, text: str) -> web.Response:
    return web.json_response({"Error": text[:MAX_ERROR]}, status=status)


def guard(*, keeps_alive: bool) -> Middleware:
    """Return the outermost middleware of every listener.

    A compressed body is answered with 415: decompressing a megabyte can take a second. The response
    is sent here, within the limits of ``send``.
    """

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        encoding = request.headers.get(hdrs.CONTENT_ENCODING, "identity")
        try:
            if encoding.lower() != "identity":
                text = f"send the body without Content-Encoding, not as {encoding[:_SHOWN]!r}"
                response: web.StreamResponse = problem(415, text)
            else:
                response = await handler(request)
        except BadRequest as err:
            response = problem(err.status, str(err))
        except web.HTTPException as err:
            response = problem(err.status, err.reason)
        if not keeps_alive:
            response.force_close()
        return await send(request, response)

    return middleware


def receive_bodies(most_per_address: int) -> Middleware:
    """Return a middleware that receives the body of a POST before the handler is called.

    So a request that takes a slot needs nothing more from its caller. At most ``most_per_address``
    bodies of one address are received at a time; further ones wait, within the time for a body.
    Raise BadRequest as ``whole_body`` does.
    """
    turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        is_wanted = request.method == hdrs.METH_POST and request.match_info.http_exception is None
        if is_wanted and not request.content.is_eof():
            address = request.remote or ""
            turn = turns.setdefault(address, asyncio.Semaphore(most_per_address))
            await whole_body(request, turn)
        return await handler(request)

    return middleware


async def whole_body(request: web.Request, turn: asyncio.Semaphore | None = None) -> bytes:
    """Return the body, within the limits on its size and time; raise BadRequest.

    A body that has not arrived is received while ``turn`` is held.
    """
    most = request.client_max_size
    if (request.content_length or 0) > most:
        raise _too_large(f"{request.content_length} bytes", most)
    try:
        if request.content.is_eof():  # a time limit costs more than to read what is there
            return await request.read()
        async with asyncio.timeout(BODY_SECONDS), turn or nullcontext():
            return await request.read()
    except TimeoutError as err:
        raise BadRequest(f"the body did not arrive within {BODY_SECONDS:.0f} s", 408) from err
    except web.HTTPRequestEntityTooLarge as err:
        raise _too_large(f"more than {most} bytes", most) from err
    except web.RequestPayloadError as err:
        raise BadRequest(f"body cannot be read: {err}") from err


async def decoded(
    decode: Callable[[bytes], T], request: web.Request, *, most: int | None = None
) -> T:
    """Return the decoded body of at most ``most`` bytes; raise BadRequest."""
    body = await whole_body(request)
    if most is not None and len(body) > most:
        raise _too_large(f"{len(body)} bytes", most)
    try:
        return decode(body)
    except UNDECODABLE as err:
        raise BadRequest(f"body cannot be read: {err}") from err


def _too_large(found: str, most: int) -> BadRequest:
    return BadRequest(f"the body has {found}, and the limit is {most}", 413)


async def send(request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
    """Send a response, or what is left of it, to a receiver that takes it.

    The connection is closed if the receiver needs more than SEND_SECONDS for all of it, or takes
    nothing between two looks. What the connection takes at once needs no limit, which costs more
    than to send it.
    """
    transport = request.transport
    try:
        if transport is None or _is_taken(transport, response):
            await response.prepare(request)
            await response.write_eof()
            return response
        async with asyncio.timeout(SEND_SECONDS):
            with _dropped_when_stalled(transport):
                await response.prepare(request)
                await response.write_eof()
    except TimeoutError:
        if transport is not None:
            transport.abort()
    except ConnectionError:
        pass  # the caller hung up, which the server notices too
    return response


@contextmanager
def _dropped_when_stalled(transport: asyncio.Transport) -> Iterator[None]:
    """Abort a connection whose write buffer is as full as at the last look, and not empty."""
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle

    def look(before: int) -> None:
        nonlocal timer
        now = transport.get_write_buffer_size()
        if now and now == before:
            transport.abort()
        else:
            timer = loop.call_later(STALLED_SECONDS, look, now)

    timer = loop.call_later(STALLED_SECONDS, look, 0)
    try:
        yield
    finally:
        timer.cancel()


def _is_taken(transport: asyncio.Transport, response: web.StreamResponse) -> bool:
    """Return whether a response goes into the buffer of the connection without waiting."""
    is_small = isinstance(response, web.Response) and (response.content_length or 0) <= SMALL
    return is_small and not transport.get_write_buffer_size()
