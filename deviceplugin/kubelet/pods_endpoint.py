"""The kubelet's own list of pods: ``GET /pods`` on its HTTPS port.

It has a pod before the kubelet calls Allocate for it, unlike a watch of the API server. The
permission ``get nodes/pods`` is enough since Kubernetes 1.33.
"""

import asyncio
import hashlib
import re
import ssl
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Final, Generic, Protocol, Self, TypeVar

import aiohttp
import msgspec

from deviceplugin.errors import KubeletError
from deviceplugin.kubelet.node_pod import NodePod
from deviceplugin.settings import KubeletTls
from gpushare.errors import UNDECODABLE
from gpushare.kube.connection.trust import trusting
from gpushare.kube.managed_fields import decoded
from gpushare.objects.pod_reader import read_pod
from gpushare.process.time_slices import in_slices

ANSWER_SECONDS: Final = 1.0
MOST_BYTES: Final = 64 * 2**20  # far more than 250 pods of the API server's largest size
_CERTIFICATE: Final = re.compile(
    "-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL
)
_SHOWN_BYTES: Final = 200


class _PodList(msgspec.Struct):
    items: list[msgspec.Raw] | None = None


_decode_list = msgspec.json.Decoder(_PodList).decode
T = TypeVar("T")


class PodSource(Protocol):
    async def fetch(self) -> list[NodePod]:
        """Return all pods that the kubelet knows now; KubeletError, soon, if it does not answer."""
        ...


class _Followed(Generic[T]):
    """A parsed file, read again when it changes; OSError or ValueError if it is invalid."""

    def __init__(self, path: Path, read: Callable[[Path], T]) -> None:
        self.path, self._read = path, read
        self._known: tuple[tuple[int, int], T] | None = None

    def now(self) -> T:
        status = self.path.stat()
        stamp = status.st_ino, status.st_mtime_ns
        if self._known is None or self._known[0] != stamp:
            self._known = stamp, self._read(self.path)
        return self._known[1]


class KubeletPods:
    """Use as a context manager. Certificate and token are read again when they change.

    ``tls`` says what ``certificate`` is. ``pin``: its first certificate is the one that the kubelet
    serves with; no other is accepted, and this one whatever its issuer and age (a kubelet does not
    renew a certificate that it has signed itself). ``ca``: it has the authorities that may have
    signed the kubelet's certificate, which must be valid for ``address`` and not expired.
    """

    def __init__(
        self, address: str, port: int, certificate: Path, token: Path, tls: KubeletTls = "pin"
    ) -> None:
        host = f"[{address}]" if ":" in address else address
        self._url = f"https://{host}:{port}/pods"
        self._where = f"{address}, port {port}"
        self._tls = tls
        self._trust: _Followed[aiohttp.Fingerprint | ssl.SSLContext] = _Followed(
            certificate, _pin if tls == "pin" else _authorities
        )
        self._token = token
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=ANSWER_SECONDS), trust_env=False
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def fetch(self) -> list[NodePod]:
        """Return all pods that the kubelet knows now, within ANSWER_SECONDS; else KubeletError."""
        if self._session is None:
            raise KubeletError("the kubelet is called before the HTTP client is open")
        try:
            headers = {"Authorization": f"Bearer {self._token.read_text().strip()}"}
            request = self._session.get(
                self._url, headers=headers, ssl=self._trust.now(), allow_redirects=False
            )
            async with asyncio.timeout(ANSWER_SECONDS), request as response:
                body = await _body(response)
            if response.status != HTTPStatus.OK:
                raise KubeletError(self._refused(response.status, body))
            pods: list[NodePod] = []
            await in_slices(_decoded(body, pods))
        except (aiohttp.ClientError, OSError, ValueError, *UNDECODABLE) as err:
            raise KubeletError(f"GET {self._url}: {self._why(err)}") from err
        return pods

    def _refused(self, status: int, body: bytes) -> str:
        fixes = {
            HTTPStatus.UNAUTHORIZED: f"the kubelet does not accept the token in {self._token}: it "
            f"needs authentication.webhook.enabled, or --kubelet-token another file",
            HTTPStatus.FORBIDDEN: "the plugin's ServiceAccount needs `get nodes/pods`, which "
            "Kubernetes supports since 1.33",
        }
        fix = fixes.get(HTTPStatus(status)) if status in set(HTTPStatus) else None
        text = body[:_SHOWN_BYTES].decode(errors="replace").strip()
        return f"GET {self._url}: {status} {text}; {fix or 'is this the port of a kubelet?'}"

    def _why(self, err: Exception) -> str:
        file = self._trust.path
        if isinstance(err, aiohttp.ServerFingerprintMismatch):
            return (
                f"the kubelet serves with another certificate (SHA-256 {err.got.hex()}) than the "
                f"first one in {file} ({err.expected.hex()}): set --kubelet-certificate to the one "
                f"it serves with, or, if the cluster signs it, use --kubelet-tls=ca"
            )
        if isinstance(err, aiohttp.ClientConnectorCertificateError):
            return (
                f"{err.certificate_error}: --kubelet-certificate={file} must contain the authority "
                f"that signed the kubelet's certificate, and --node-address must be an address "
                f"that the certificate names; if the kubelet signed it itself, use "
                f"--kubelet-tls=pin"
            )
        if isinstance(err, TimeoutError):
            return f"Timeout: {self._where} did not answer within {ANSWER_SECONDS:g} s"
        if isinstance(err, aiohttp.ClientConnectorError):
            return (
                f"no connection to {self._where} ({err.os_error}): check --node-address and "
                f"--kubelet-port"
            )
        if isinstance(err, UNDECODABLE):
            return f"the answer is not a list of pods: {err}; is this the port of a kubelet?"
        return f"{type(err).__name__} {err}"


def _decoded(body: bytes, pods: list[NodePod]) -> Iterator[None]:
    for item in decoded(_decode_list, body).items or ():
        pods.append(NodePod.of(read_pod(item)))
        yield


async def _body(response: aiohttp.ClientResponse) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in response.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > MOST_BYTES:
            response.close()
            raise ValueError(f"the answer is longer than {MOST_BYTES} bytes")
    return b"".join(parts)


def _pin(path: Path) -> aiohttp.Fingerprint:
    found = _CERTIFICATE.search(path.read_text(errors="replace"))
    if found is None:
        raise ValueError(f"{path} has no certificate")
    return aiohttp.Fingerprint(hashlib.sha256(ssl.PEM_cert_to_DER_cert(found[0])).digest())


def _authorities(path: Path) -> ssl.SSLContext:
    try:
        return trusting(path)
    except ssl.SSLError as err:
        raise ValueError(f"{path} has no certificates that can be read: {err}") from err
