"""Get a page over TLS, also from a Unix socket, which aiohttp does not support.

kube-scheduler's certificate is self-signed and cannot be verified, so only the client certificate
is presented, and no token is ever sent.
"""

import http.client
import socket
import ssl
from pathlib import Path
from typing import Final

from gpushare.errors import TooLarge, Unreachable
from gpushare.kube.connection.access import Certificates

SECONDS: Final = 10.0
MOST_BYTES: Final = 2**20  # a kube-scheduler's configuration has some KiB

Address = Path | tuple[str, int]


def page(address: Address, path: str, own: Certificates) -> tuple[int, bytes]:
    """Return status and body of a page; show one's ``own`` certificate.

    Raises Unreachable, and TooLarge if the page has more than MOST_BYTES.
    """
    try:
        with _connected(address) as plain, _context(own).wrap_socket(plain) as wrapped:
            connection = http.client.HTTPConnection("localhost")
            connection.sock = wrapped
            connection.request("GET", path, headers={"Connection": "close"})
            answer = connection.getresponse()
            status, body = answer.status, answer.read(MOST_BYTES + 1)
    except (OSError, http.client.HTTPException) as err:
        raise Unreachable(f"{path}: no answer: {err}") from err
    if len(body) > MOST_BYTES:
        raise TooLarge(f"{path}: the answer has more than {MOST_BYTES} bytes")
    return status, body


def _connected(address: Address) -> socket.socket:
    if isinstance(address, Path):
        made = socket.socket(socket.AF_UNIX)
        made.settimeout(SECONDS)
        try:
            made.connect(str(address))
        except OSError:
            made.close()
            raise
        return made
    return socket.create_connection(address, timeout=SECONDS)


def _context(own: Certificates) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    own.identify(context)
    return context
