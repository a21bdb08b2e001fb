"""The kubelet's own list of pods: ``GET /pods`` on its HTTPS port.

It holds a pod before the kubelet calls Allocate for it, which a watch of the API server does not.
The right ``get nodes/pods`` is enough from Kubernetes 1.33 on. TLS is pinned to the certificate
that this node's kubelet serves with, because kubelets sign it themselves unless told otherwise.
"""

import asyncio
import ssl
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

import aiohttp
import msgspec

from deviceplugin.errors import KubeletError
from gpushare.objects import Pod

ANSWER_SECONDS: Final = 1.0
_NO_CHECK_TIME: Final = ssl.VerifyFlags(0x200000)  # X509_V_FLAG_NO_CHECK_TIME, OpenSSL x509_vfy.h


class _PodList(msgspec.Struct):
    items: list[Pod] | None = None


_decoder = msgspec.json.Decoder(_PodList)


class PodSource(Protocol):
    async def fetch(self) -> list[Pod]:
        """All pods that the kubelet knows now; KubeletError, soon, if it does not say."""
        ...


class KubeletPods:
    """Use as a context manager. Certificate and token are read again as they change."""

    def __init__(self, address: str, port: int, certificate: Path, token: Path) -> None:
        host = f"[{address}]" if ":" in address else address
        self._url = f"https://{host}:{port}/pods"
        self._certificate, self._token = certificate, token
        self._pinned: tuple[int, ssl.SSLContext] | None = None
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=ANSWER_SECONDS), trust_env=False
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def fetch(self) -> list[Pod]:
        """All pods that the kubelet knows now, in ANSWER_SECONDS at most; else KubeletError."""
        if self._session is None:
            raise KubeletError("the kubelet is asked before the session is open")
        try:
            headers = {"Authorization": f"Bearer {self._token.read_text().strip()}"}
            request = self._session.get(self._url, headers=headers, ssl=self._context())
            async with asyncio.timeout(ANSWER_SECONDS), request as response:
                body = await response.read()
            if response.status != HTTPStatus.OK:
                raise KubeletError(
                    f"GET {self._url}: {response.status} {body[:200].decode(errors='replace')}; "
                    f"the plugin's ServiceAccount needs `get nodes/pods`"
                )
            return _decoder.decode(body).items or []
        except (aiohttp.ClientError, OSError, ValueError, msgspec.DecodeError) as err:
            # TimeoutError is an OSError; ValueError: a certificate file without certificates.
            raise KubeletError(f"GET {self._url}: {type(err).__name__} {err}") from err

    def _context(self) -> ssl.SSLContext:
        changed = self._certificate.stat().st_mtime_ns
        if self._pinned is None or self._pinned[0] != changed:
            context = ssl.create_default_context(cafile=self._certificate)
            context.check_hostname = False
            # The file's certificate itself is trusted, whoever has signed it and, because a kubelet
            # never renews one that it has signed itself, also when its year is over.
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
            self._pinned = changed, context
        return self._pinned[1]
