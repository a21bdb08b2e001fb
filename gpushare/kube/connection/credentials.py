"""Keep the credentials for the API server up to date while the program runs.

Tokens, certificates and certificate authorities are renewed in their files. Reading them, or
running a credential plugin, may block forever, so it happens in a thread, one at a time. Until it
ends, and if it fails, the last credentials stay in use.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from gpushare.clock import Clock
from gpushare.errors import SettingsError
from gpushare.kube.connection.access import Access
from gpushare.process import daemon_thread

log = logging.getLogger(__name__)

AGAIN_SECONDS: Final = 60.0  # client-go's period for a token in a file
REFUSED_SECONDS: Final = 10.0  # between two reads after the API server rejected credentials


@dataclass(frozen=True, slots=True)
class Source:
    """The origin of credentials. ``read`` blocks and raises SettingsError.

    ``is_followed``: reading is cheap and happens every ``AGAIN_SECONDS``; otherwise it happens only
    after the API server rejected the credentials.
    """

    read: Callable[[], Access]
    is_followed: bool


@dataclass(frozen=True, slots=True)
class Credential:
    """Access, with a TLS context that stays the same while its certificates do."""

    access: Access
    tls: ssl.SSLContext


class Credentials:
    """The credentials of one user; send requests with ``current``."""

    def __init__(self, access: Access, source: Source, clock: Clock) -> None:
        self._source, self._clock = source, clock
        self._current = _credential(access, None)
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


def _credential(access: Access, last: Credential | None) -> Credential:
    """Load the certificates, unless they are the ``last`` ones. Raises SettingsError."""
    if last is not None and last.access.certificates == access.certificates:
        return last if last.access == access else Credential(access, last.tls)
    found = access.certificates
    try:
        context = replace(found, certificate=b"", key=b"").context()
    except (OSError, ValueError) as err:  # ssl.SSLError is an OSError
        raise _unusable("certificate-authority", "at least one certificate in PEM", access) from err
    try:
        found.identify(context)
    except (OSError, ValueError) as err:
        wanted = "a certificate and its key, both in PEM and without a password"
        raise _unusable("client-certificate and client-key", wanted, access) from err
    return Credential(access, context)


def _unusable(name: str, wanted: str, access: Access) -> SettingsError:
    return SettingsError(
        f"{access.where}: {name} cannot be used for {access.server}: write {wanted}"
    )
