"""Who we are to the API server, read again while the program runs.

Tokens, certificates and authorities are renewed in their files under a running program. Reading
them, or running a program that says them, may block for ever, so it happens in a thread, once at a
time. Until it has ended, and where it fails, the last ones stay in use.
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
REFUSED_SECONDS: Final = 10.0  # between two readings after refusals
_BEARER: Final = "BearerToken"


@dataclass(frozen=True, slots=True)
class Source:
    """Where credentials come from. ``read`` blocks and raises SettingsError.

    ``is_followed``: reading them again costs little, so that it is done each ``AGAIN_SECONDS``;
    otherwise only a refusal is a reason.
    """

    read: Callable[[], client.Configuration]
    is_followed: bool


@dataclass(frozen=True, slots=True)
class Credential:
    """``bearer`` is the header's value, empty where only a certificate says who we are."""

    bearer: str
    tls: ssl.SSLContext
    files: tuple[bytes, ...]


class Credentials:
    """The credentials of one user; ``current`` is what a request is to be sent with."""

    def __init__(self, settings: client.Configuration, source: Source, clock: Clock) -> None:
        self._source, self._clock = source, clock
        self._current = _credential(settings, None)
        self._read_at = clock.monotonic()
        self._reading: asyncio.Future[Credential] | None = None

    @property
    def current(self) -> Credential:
        """The last credentials that could be read; begins to read them again when it is time."""
        is_old = self._clock.monotonic() - self._read_at >= AGAIN_SECONDS
        if self._source.is_followed and is_old:
            self._begin()
        return self._current

    async def replaced(self, refused: Credential, seconds: float) -> bool:
        """Whether there are others than those that the API server has just refused.

        They are read again for that, ``seconds`` at most; not more often than every
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
    """What the settings say; ``last`` itself where nothing has changed. Raises SettingsError."""
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
