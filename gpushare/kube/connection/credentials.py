"""Keep the credentials for the API server up to date while the program runs.

Tokens, certificates and certificate authorities are renewed in their files. Reading them, or
running a credential plugin, may block forever, so it happens in a thread, one at a time. Until it
ends, and if it fails, the last credentials stay in use.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kubernetes.aio import client
from kubernetes.aio.client import rest

from gpushare.clock import Clock
from gpushare.errors import SettingsError
from gpushare.process import daemon_thread

log = logging.getLogger(__name__)

AGAIN_SECONDS: Final = 60.0  # client-go's period for a token in a file
REFUSED_SECONDS: Final = 10.0  # between two reads after the API server rejected credentials
_BEARER: Final = "BearerToken"


@dataclass(frozen=True, slots=True)
class Source:
    """The origin of credentials. ``read`` blocks and raises SettingsError.

    ``is_followed``: reading is cheap and happens every ``AGAIN_SECONDS``; otherwise it happens only
    after the API server rejected the credentials.
    """

    read: Callable[[], client.Configuration]
    is_followed: bool


@dataclass(frozen=True, slots=True)
class Credential:
    """``bearer`` is the Authorization header, empty if only a certificate is used."""

    bearer: str
    tls: ssl.SSLContext
    files: tuple[bytes, ...]


class Credentials:
    """The credentials of one user; send requests with ``current``."""

    def __init__(self, settings: client.Configuration, source: Source, clock: Clock) -> None:
        self._source, self._clock = source, clock
        self._current = _credential(settings, None)
        self._read_at = clock.monotonic()
        self._reading: asyncio.Future[Credential] | None = None

    @property
    def current(self) -> Credential:
        """Return the last credentials that could be read; start reading again when due."""
        is_old = self._clock.monotonic() - self._read_at >= AGAIN_SECONDS
        if self._source.is_followed and is_old:
            self._begin()
        return self._current

    async def replaced(self, refused: Credential, seconds: float) -> bool:
        """Return whether there are other credentials than those just rejected with a 401.

        Read them again if need be, for ``seconds`` at most and not more often than every
        ``REFUSED_SECONDS``.
        """
        if self._current is refused:
            if self._clock.monotonic() - self._read_at >= REFUSED_SECONDS:
                self._begin()
            if self._reading is not None and seconds > 0:
                await asyncio.wait({self._reading}, timeout=seconds)
        return self._current is not refused

    def _begin(self) -> None:
        if self._reading is None:
            self._read_at = self._clock.monotonic()
            last = self._current
            self._reading = daemon_thread.call(
                lambda: _credential(self._source.read(), last), "credentials"
            )
            self._reading.add_done_callback(self._take)

    def _take(self, reading: asyncio.Future[Credential]) -> None:
        self._reading = None
        if reading.cancelled():
            return
        if (error := reading.exception()) is not None:
            log.warning(
                "credentials not read again, the last ones stay in use", extra={"why": str(error)}
            )
            return
        self._current = reading.result()


def _credential(settings: client.Configuration, last: Credential | None) -> Credential:
    """Load the credentials; return ``last`` if nothing changed. Raises SettingsError."""
    bearer = str(settings.api_key.get(_BEARER) or "").strip()  # a file ends with a newline
    paths = (settings.ssl_ca_cert, settings.cert_file, settings.key_file)
    try:
        files = tuple(Path(path).read_bytes() for path in paths if path)
        if last is not None and last.files == files:
            return last if last.bearer == bearer else Credential(bearer, last.tls, files)
        tls: ssl.SSLContext = rest.RESTClientObject(settings).ssl_context
    except (OSError, ValueError) as err:  # ssl.SSLError is an OSError
        raise SettingsError(
            f"the certificates or the key for {settings.host} cannot be used: {err}"
        ) from err
    return Credential(bearer, tls, files)
