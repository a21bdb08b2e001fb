"""Sockets whose kernel forgets what the other side does not acknowledge."""

import socket
import sys

from aiohttp import AddrInfoType, SocketFactoryType


def forgetting(seconds: float) -> SocketFactoryType:
    """Sockets on which nothing is sent any more once it is unacknowledged for ``seconds``.

    The kernel sends it again and again otherwise, for a quarter of an hour and after the socket has
    been closed: a network that comes back delivers it then. Of a connection on which nothing is
    under way, as of a watch, nothing is asked. Only Linux has this; elsewhere sockets are as ever.
    """

    def make(address: AddrInfoType) -> socket.socket:
        family, kind, protocol, *_ = address
        made = socket.socket(family, kind, protocol)
        if sys.platform == "linux":
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(seconds * 1000))
        return made

    return make
