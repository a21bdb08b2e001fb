"""TLS contexts that follow their files, and the names in a caller's certificate.

Certificates are renewed while the program runs. A new connection uses the files as they are then;
an existing connection keeps what it was opened with.
"""

import logging
import ssl
from collections.abc import Callable, Iterable
from pathlib import Path

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from extender.settings.listeners import Certificate, Tls
from gpushare.errors import SettingsError
from gpushare.http_server.requests import problem

log = logging.getLogger(__name__)


class ReloadingContext:
    """Makes the context again whenever one of ``files`` has changed.

    Raise SettingsError if the files cannot be used at the start. Later the last good context stays
    in use, and the error is logged once for each state of the files: one can be half written.
    """

    def __init__(self, make: Callable[[], ssl.SSLContext], *files: str) -> None:
        self._make, self._files = make, files
        try:
            self._stamps = self._read_stamps()
            self._context = make()
        except (OSError, ValueError) as err:  # ssl.SSLError is an OSError
            raise SettingsError(f"the TLS files {', '.join(files)} cannot be used: {err}") from err

    def current(self) -> ssl.SSLContext:
        """Return the context of the files; the same object as long as they do not change."""
        try:
            stamps = self._read_stamps()
        except OSError:
            return self._context  # between two versions; the next call checks again
        if stamps == self._stamps:
            return self._context
        self._stamps = stamps
        try:
            self._context = self._make()
        except (OSError, ValueError) as err:
            log.warning(
                "certificate not reloaded, the last one stays in use",
                extra={"certificate": self._files[0], "why": str(err)},
            )
        else:
            log.info("certificate reloaded", extra={"certificate": self._files[0]})
        return self._context

    def _read_stamps(self) -> list[tuple[int, int, int]]:
        found = (Path(each).stat() for each in self._files)  # follows links: a Secret swaps those
        return [(each.st_mtime_ns, each.st_ino, each.st_size) for each in found]


def server_context(tls: Tls) -> ssl.SSLContext:
    """Return a context that requires a certificate of the authority from every caller.

    It does not check names: ``is_allowed`` does. Raise SettingsError.
    """

    def make() -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_REQUIRED
        # A ticket would admit a caller again after its authority was removed.
        context.num_tickets = 0
        context.options |= ssl.OP_NO_TICKET
        return _loaded(context, tls)

    return _following(make, tls.certificate, tls.key, tls.authority)


def certificate_context(shown: Certificate) -> ssl.SSLContext:
    """Return a context that presents a certificate and requires none. Raise SettingsError."""

    def make() -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2  # browsers and older scrapers
        context.load_cert_chain(shown.certificate, shown.key)
        return context

    return _following(make, shown.certificate, shown.key)


def client_contexts(tls: Tls) -> ReloadingContext:
    """Return contexts for a caller; the server must have a certificate for the requested name.

    Take ``current()`` for every request: a pool keyed by context then opens a new connection when
    the files have changed. Raise SettingsError.
    """

    def make() -> ssl.SSLContext:
        return _loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), tls)  # verifies chain and name

    return ReloadingContext(make, tls.certificate, tls.key, tls.authority)


def peer_names(request: web.BaseRequest) -> frozenset[str]:
    """Return the DNS names and common names of the caller's certificate; none without TLS."""
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
    """Return whether the caller's certificate has one of exactly these names."""
    return not peer_names(request).isdisjoint(names)


def require_name(allowed: tuple[str, ...]) -> Middleware:
    """Return a middleware that rejects callers whose certificate has none of these names."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        if is_allowed(request, allowed):
            return await handler(request)
        shown = ", ".join(sorted(peer_names(request))) or "no name"
        text = f"your certificate has {shown}, which listen.decidingTls does not allow"
        return problem(403, text)

    return middleware


def _following(make: Callable[[], ssl.SSLContext], *files: str) -> ssl.SSLContext:
    """Return a context for a listener that uses the current files at every handshake."""
    inner, outer = ReloadingContext(make, *files), make()

    def choose(connection: ssl.SSLObject, _name: str | None, _: ssl.SSLContext) -> None:
        # Called whether or not the client sent a name; brings key, chain and authority.
        connection.context = inner.current()

    outer.sni_callback = choose
    return outer


def _loaded(context: ssl.SSLContext, tls: Tls) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(tls.certificate, tls.key)
    context.load_verify_locations(tls.authority)
    return context
