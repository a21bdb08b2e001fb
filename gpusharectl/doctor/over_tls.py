"""What answers with TLS on a Unix socket: its page, and the certificate that it shows.

aiohttp speaks no TLS over Unix sockets, and kube-scheduler's own certificate is vouched for by
nobody: so only a certificate of ours is shown there, which is worth nothing to who gets it, and
never a token.
"""

import http.client
import socket
import ssl
from pathlib import Path
from typing import Final

from gpushare.errors import Unreachable

SECONDS: Final = 10.0

Certificate = tuple[str, str]  # paths of the certificate and of its key
Address = Path | tuple[str, int]


def page(address: Address, path: str, own: Certificate) -> tuple[int, bytes]:
    """Status and body of a page, asked for with the certificate ``own``. Raises Unreachable."""
    try:
        with _connected(address) as plain, _context(own).wrap_socket(plain) as wrapped:
            connection = http.client.HTTPConnection("localhost")
            connection.sock = wrapped
            connection.request("GET", path, headers={"Connection": "close"})
            answer = connection.getresponse()
            return answer.status, answer.read()
    except (OSError, http.client.HTTPException) as err:
        raise Unreachable(f"{path}: no answer: {err}") from err


def shown(address: Address) -> bytes:
    """The certificate that a listener shows, in DER. Raises Unreachable."""
    try:
        with _connected(address) as plain, _context(None).wrap_socket(plain) as wrapped:
            return wrapped.getpeercert(binary_form=True) or b""
    except OSError as err:
        raise Unreachable(f"no certificate is shown: {err}") from err


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


def _context(own: Certificate | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if own is not None:
        context.load_cert_chain(*own)
    return context
