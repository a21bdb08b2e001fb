"""Say in one sentence why a server does not answer, and what to do (pure)."""

import os
import re
import ssl
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from gpushare.kube.connection.access import Access, is_secure

# The codes of OpenSSL (X509_V_ERR_...).
_NOT_YET_VALID: Final = 9
_EXPIRED: Final = 10
_UNKNOWN_AUTHORITY: Final = frozenset({18, 19, 20, 21})
_OTHER_NAME: Final = frozenset({62, 64})
_NO_TLS: Final = (
    "WRONG_VERSION_NUMBER",
    "RECORD_LAYER_FAILURE",
    "HTTP_REQUEST",
    "UNKNOWN_PROTOCOL",
)
_TLS: Final = re.compile(r"\[SSL: (\w+)\]")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where to correct the certificate authority and the address of a server."""

    authority: str
    address: str


KUBECONFIG: Final = Origin(
    "certificate-authority in the kubeconfig", "server or tls-server-name in the kubeconfig"
)


def not_reached(err: aiohttp.ClientError, access: Access, proxy: str | None) -> str:
    """Say why there is no connection to an API server."""
    text = f"cannot reach {access.server} ({access.where})"
    if isinstance(err, aiohttp.ClientProxyConnectionError | aiohttp.ClientHttpProxyError):
        origin = "proxy-url in the kubeconfig" if access.proxy else "HTTPS_PROXY or HTTP_PROXY"
        shown = URL(proxy or "").with_user(None)  # and without the password
        text = f"{text} through the proxy {shown} ({origin})"
    return f"{text}: {reason(err, KUBECONFIG)}"


def wants_tls(code: int, answer: bytes) -> bool:
    """Return whether a server written in Go refuses a request because it was sent in the clear."""
    return code == HTTPStatus.BAD_REQUEST and b"HTTP request to an HTTPS server" in answer[:200]


def without_tls(access: Access) -> str:
    return f"cannot reach {access.server} ({access.where}): it uses TLS; write https://"


def not_answered(err: BaseException, access: Access, seconds: float) -> str:
    """Say why a request to an API server got no answer."""
    return f"{access.server} ({access.where}): {reason(err, KUBECONFIG, seconds)}"


def not_accepted(access: Access) -> str:
    """Say whose credentials an API server rejected."""
    text = f"{access.server} ({access.where})"
    if not is_secure(access.server):
        return f"{text} requires credentials, which are sent only by TLS: write https://"
    if not access.user:
        return f"{text} requires credentials, and the context has no user: add one"
    return f"{text} does not accept the credentials of {access.user}: log in again or renew them"


def reason(err: BaseException, origin: Origin, seconds: float = 0.0) -> str:
    """Say what failed, and what to do about it; ``seconds`` is the time limit."""
    match err:
        case aiohttp.ClientConnectorCertificateError():
            return _certificate(err.certificate_error, err.host, origin)
        case aiohttp.ClientConnectorDNSError():
            return f"the name {err.host} cannot be resolved; check the name, DNS and your VPN"
        case aiohttp.ClientHttpProxyError():
            return _refusal(err.status)
        case TimeoutError():
            limit = f" within {seconds:g} s" if seconds else ""
            return f"no answer{limit}; check the address, firewalls and your VPN"
        case OSError():
            return _connection(err)
        case aiohttp.ServerDisconnectedError() | aiohttp.ClientPayloadError():
            return "the connection was closed before the whole answer; try again"
        case HttpProcessingError() | aiohttp.ClientResponseError():
            return "the answer is not HTTP; check the address"
        case _:
            return repr(err)


def _certificate(err: Exception, host: str, origin: Origin) -> str:
    code = err.verify_code if isinstance(err, ssl.SSLCertVerificationError) else 0
    if code == _EXPIRED:
        return "its certificate has expired; renew it, or correct the clock of this machine"
    if code == _NOT_YET_VALID:
        return "its certificate is not valid yet; correct the clock of this machine"
    if code in _UNKNOWN_AUTHORITY:
        return f"its certificate is signed by an unknown authority; check {origin.authority}"
    if code in _OTHER_NAME:
        return f"its certificate is not for {host}; correct {origin.address}"
    why = err.verify_message if isinstance(err, ssl.SSLCertVerificationError) else err
    return f"its certificate is not valid: {why}"


def _refusal(code: int) -> str:
    if code == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED:
        return "the proxy requires a user and a password; write both into its URL"
    return f"the proxy answers {code}; if the server needs no proxy, add it to NO_PROXY"


def _connection(err: OSError) -> str:
    cause = err.os_error if isinstance(err, aiohttp.ClientConnectorError) else err
    if isinstance(cause, ConnectionRefusedError):
        return "connection refused; check the address, and that the server runs"
    if isinstance(cause, ConnectionResetError | BrokenPipeError):
        return "the connection was closed; check the address, or try again"
    if found := _TLS.search(f"{cause.strerror} {cause}"):
        if found[1] in _NO_TLS:
            return "it does not use TLS; check the port"
        text = found[1].replace("_", " ").lower()
        return f"TLS failed ({text}); check the certificates"
    if cause.errno:
        return f"{os.strerror(cause.errno).lower()}; check the address and your network"
    return f"{cause}; check the address and your network"
