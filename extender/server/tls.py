"""Mutual TLS: contexts that follow their files, and the names in a caller's certificate.

Certificates are renewed under a running program. Each new connection is made with what the files
say then; a connection that is there already goes on with what it was opened with.
"""

import logging
import ssl
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from aiohttp import web

from extender.settings.configuration import Tls
from gpushare.errors import SettingsError

log = logging.getLogger(__name__)

_Stamp = tuple[tuple[int, int, int], ...]


class Reloading:
    """Contexts made anew whenever one of the three files has changed.

    SettingsError where the files cannot be used at the start. Later the last good context stays,
    and that is logged once for each state of the files: they may be caught half written.
    """

    def __init__(self, tls: Tls, make: Callable[[Tls], ssl.SSLContext]) -> None:
        self._tls, self._make = tls, make
        self._paths: Final = tuple(Path(p) for p in (tls.certificate, tls.key, tls.authority))
        try:
            self._stamp: _Stamp | None = self._stamps()
            self._context = make(tls)
        except (OSError, ValueError) as err:  # ssl.SSLError is an OSError
            raise SettingsError(
                f"certificate {tls.certificate}, key {tls.key} and authority {tls.authority} "
                f"cannot be used: {err}"
            ) from err

    def current(self) -> ssl.SSLContext:
        """The context that the files make now; the same object as long as they do not change."""
        try:
            stamp: _Stamp | None = self._stamps()
        except OSError:
            stamp = None  # between two versions; looked at again at the next call
        if stamp == self._stamp or stamp is None:
            return self._context
        self._stamp = stamp
        try:
            self._context = self._make(self._tls)
        except (OSError, ValueError) as err:
            log.warning(
                "certificate not reloaded, the last one stays in use",
                extra={"certificate": self._tls.certificate, "why": str(err)},
            )
        else:
            log.info("certificate reloaded", extra={"certificate": self._tls.certificate})
        return self._context

    def _stamps(self) -> _Stamp:
        found = (path.stat() for path in self._paths)  # through links: a Secret swaps its folder
        return tuple((each.st_mtime_ns, each.st_ino, each.st_size) for each in found)


def server_context(tls: Tls) -> ssl.SSLContext:
    """For a listener: asks every caller for a certificate of the authority; follows the files.

    Which name is allowed what is not decided here: ``peer_names`` says who called. Raises
    SettingsError.
    """
    inner = Reloading(tls, _server)
    outer = _server(tls)

    def choose(connection: ssl.SSLObject, _name: str | None, _: ssl.SSLContext) -> None:
        # At every handshake, whether or not a name was sent; brings key, chain and authority.
        connection.context = inner.current()

    outer.sni_callback = choose
    return outer


def client_contexts(tls: Tls) -> Reloading:
    """For a caller: shows our certificate, and wants one of the authority for the name it asked.

    Take ``current()`` for every request: a pool keyed by context then opens a new connection when
    the files have changed. Raises SettingsError.
    """
    return Reloading(tls, _client)


def peer_names(request: web.BaseRequest) -> frozenset[str]:
    """The DNS names and common names of the caller's certificate; none on a plain connection."""
    certificate = request.get_extra_info("peercert") or {}
    dns = (value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS")
    common = (
        value
        for part in certificate.get("subject", ())
        for kind, value in part
        if kind == "commonName"
    )
    return frozenset((*dns, *common))


def is_allowed(request: web.BaseRequest, names: Iterable[str]) -> bool:
    """Whether the caller's certificate has one of these names, letter for letter."""
    return not peer_names(request).isdisjoint(names)


def _server(tls: Tls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    # A ticket would let a caller in again whose authority was taken away meanwhile.
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET
    return _loaded(context, tls)


def _client(tls: Tls) -> ssl.SSLContext:
    return _loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), tls)  # verifies chain and name


def _loaded(context: ssl.SSLContext, tls: Tls) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(tls.certificate, tls.key)
    context.load_verify_locations(tls.authority)
    return context
