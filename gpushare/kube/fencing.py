"""Keep requests from being sent, or delivered, later than they may take effect."""

import socket
import sys
from collections.abc import Callable

import aiohttp
from aiohttp import AddrInfoType, SocketFactoryType
from aiohttp.abc import AbstractStreamWriter
from aiohttp.client_proto import ResponseHandler
from aiohttp.client_reqrep import ConnectionKey

from gpushare.errors import ApiError


class FencedBody(aiohttp.BytesPayload):
    """A request body that calls ``may_go`` at the moment at which it is sent.

    Before Python 3.12, aiohttp sends a body in a separate task, and on a new connection only after
    the handshake. Without this check, a process that is suspended in between would send the body
    when it resumes. ``refusal`` is the ApiError that ``may_go`` raised.
    """

    def __init__(self, value: bytes, may_go: Callable[[], object] | None) -> None:
        super().__init__(value, content_type="application/json")
        self._may_go = may_go
        self.refusal: ApiError | None = None

    async def write_with_length(
        self, writer: AbstractStreamWriter, content_length: int | None
    ) -> None:
        if self._may_go is not None:
            try:
                self._may_go()
            except ApiError as err:
                self.refusal = err
                raise
        await super().write_with_length(writer, content_length)


class AbortingConnector(aiohttp.TCPConnector):
    """A connector that aborts the connection of a request that was given up.

    aiohttp would send what is left of the request, and then wait up to 30 s, unknown to its
    session, until the server has ended TLS too.
    """

    def _release(
        self, key: ConnectionKey, protocol: ResponseHandler, *, should_close: bool = False
    ) -> None:
        if should_close or protocol.should_close:
            protocol.abort()
        super()._release(key, protocol, should_close=should_close)


def sockets_that_expire(seconds: float) -> SocketFactoryType:
    """Make sockets that stop sending data that is unacknowledged for ``seconds``.

    Otherwise the kernel retransmits for a quarter of an hour, even after the socket is closed, and
    delivers the data when the network recovers. Idle connections, such as a quiet watch, are not
    affected. Only Linux supports this; elsewhere the sockets are ordinary ones.
    """

    def make(address: AddrInfoType) -> socket.socket:
        family, kind, protocol, *_ = address
        made = socket.socket(family, kind, protocol)
        if sys.platform == "linux":
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(seconds * 1000))
        return made

    return make
