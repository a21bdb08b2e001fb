"""Read how to reach an API server and as whom: address, TLS and credentials of a context or a pod.

Own code, because the libraries that do it bring a second HTTP client or many megabytes of models,
and do not read credentials again as ``credentials.py`` needs it (docs/dev/decisions.md).
"""

import base64
import os
import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import AnyStr, Final
from urllib.parse import SplitResult, quote, urlsplit
from urllib.request import getproxies, proxy_bypass

from gpushare.errors import SettingsError
from gpushare.kube.connection import bounded_file, exec_credential, kubeconfig
from gpushare.kube.connection.trust import trusting

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_MOST_BYTES: Final = 2**20  # of a token or a certificate


@dataclass(frozen=True, slots=True, repr=False)  # it has secrets
class Certificates:
    """The other side's certificate authorities in PEM, and one's own certificate with its key.

    Without ``authority`` those of the system are trusted.
    """

    authority: bytes = b""
    certificate: bytes = b""
    key: bytes = b""
    is_verified: bool = True

    def context(self) -> ssl.SSLContext:
        """Return what to connect with. Raises OSError or ValueError for unusable contents."""
        with _path_of(self.authority) as path:
            made = trusting(path)
        self.identify(made)
        if not self.is_verified:
            made.check_hostname = False
            made.verify_mode = ssl.CERT_NONE
        return made

    def identify(self, context: ssl.SSLContext) -> None:
        """Present the certificate in a TLS context; raise OSError or ValueError if unusable."""
        if self.certificate:
            with _path_of(self.certificate + b"\n" + self.key) as path:
                # A password is never asked for.
                context.load_cert_chain(path or "", password="")


@dataclass(frozen=True, slots=True, repr=False)  # it has secrets
class Access:
    """An API server and an identity. ``authorization`` is a header, empty without a token.

    ``impersonation`` are headers that ask for another identity.
    ``where`` and ``user`` name the origin of the address and of the identity in error texts.
    """

    server: str
    where: str = ""
    user: str = ""
    authorization: str = ""
    impersonation: tuple[tuple[str, str], ...] = ()
    certificates: Certificates = Certificates()
    tls_server_name: str | None = None
    proxy: str | None = None


def of_context(found: kubeconfig.Chosen, seconds: float | None) -> Access:
    """Read a context's files; run its credential plugin for ``seconds`` at most.

    The user's credentials are read only if nobody on the way can read them. Blocks. Raises
    SettingsError.
    """
    cluster = found.cluster
    user = found.user if is_secure(cluster.server) else kubeconfig.User()
    is_tls = _is_tls(cluster)
    authority = b""
    if is_tls:
        authority = _content(cluster.certificate_authority_data, cluster.certificate_authority)
    if user.exec is not None:
        try:
            user = exec_credential.user_of(user.exec, cluster, authority, seconds)
        except SettingsError as err:
            raise SettingsError(f"{found.where}: {err}") from err
    certificates = Certificates()
    if is_tls:
        certificates = Certificates(
            authority,
            _content(user.client_certificate_data, user.client_certificate),
            _content(user.client_key_data, user.client_key),
            is_verified=not cluster.insecure_skip_tls_verify,
        )
    return Access(
        server=cluster.server.rstrip("/"),
        where=found.where,
        user=f"user {found.user_name}" if found.user_name else "",
        authorization=_authorization(user),
        impersonation=tuple(_impersonation(found.user)),
        certificates=certificates,
        tls_server_name=cluster.tls_server_name,
        proxy=cluster.proxy_url,
    )


def of_pod() -> Access:
    """Read the pod's own ServiceAccount. Blocks. Raises SettingsError."""
    host, port = (os.environ.get(f"KUBERNETES_SERVICE_{each}", "") for each in ("HOST", "PORT"))
    if not host or not port:
        raise SettingsError("KUBERNETES_SERVICE_HOST or KUBERNETES_SERVICE_PORT is empty")
    token = _text(SERVICE_ACCOUNT / "token")
    authority = bounded_file.read(SERVICE_ACCOUNT / "ca.crt", _MOST_BYTES)
    for name, content in (("token", token), ("ca.crt", authority)):
        if not content:
            raise SettingsError(f"{SERVICE_ACCOUNT / name} is empty")
    return Access(
        server=f"https://{f'[{host}]' if ':' in host else host}:{port}",
        where="the pod's own cluster",
        user="the pod's ServiceAccount",
        authorization=f"Bearer {token}",
        certificates=Certificates(authority),
    )


def proxy_of(access: Access) -> str | None:
    """Return the kubeconfig's proxy, or that of HTTPS_PROXY and NO_PROXY. Raises SettingsError."""
    url = urlsplit(access.server)
    if access.proxy or _needs_no_proxy(url):
        return access.proxy
    found = getproxies().get(url.scheme)
    if found and "://" not in found:
        found = f"http://{found}"
    if found and not kubeconfig.is_url(found):  # it may have a password: it is not shown
        raise SettingsError(
            f"the variable {url.scheme.upper()}_PROXY is not an HTTP proxy: write http://HOST:PORT"
        )
    return found


def is_secure(server: str) -> bool:
    """Return whether credentials may be sent there: by TLS, or within this machine."""
    url = urlsplit(server)
    return url.scheme == "https" or _is_local(url.hostname or "")


def own_namespace() -> str:
    """Return the namespace of the pod that this program runs in, else "default"."""
    if found := os.environ.get("POD_NAMESPACE", ""):
        return found
    try:
        return _text(SERVICE_ACCOUNT / "namespace") or "default"
    except SettingsError:
        return "default"


def _is_tls(cluster: kubeconfig.Cluster) -> bool:
    return urlsplit(cluster.server).scheme == "https"


def _is_local(host: str) -> bool:
    address = _address(host)
    return host == "localhost" if address is None else address.is_loopback


def _address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def _needs_no_proxy(url: SplitResult) -> bool:
    """Return whether NO_PROXY names a host, or it is this machine, as Go decides it."""
    host = url.hostname or ""
    port = url.port or (443 if url.scheme == "https" else 80)
    address = _address(host)
    named = [each.strip() for each in getproxies().get("no", "").split(",")]
    is_named = address is not None and any(_covers(each, address, port) for each in named)
    # urllib knows names, and the settings of other systems than Linux, but no IPv6 addresses.
    is_known = ":" not in host and bool(proxy_bypass(f"{host}:{port}"))
    return _is_local(host) or is_named or is_known


def _covers(entry: str, address: IPv4Address | IPv6Address, port: int) -> bool:
    """Return whether an entry of NO_PROXY is "*", or a network or address that covers this one."""
    name = entry
    if entry.startswith("["):
        name, _, more = entry[1:].partition("]")
        if more not in {"", f":{port}"}:
            return False
    try:
        return name == "*" or address in ip_network(name, strict=False)
    except ValueError:
        return False


def _authorization(user: kubeconfig.User) -> str:
    # A file takes precedence over a token, as in client-go.
    token = user.token
    if user.token_file:
        token = _filled(user.token_file, _text(Path(user.token_file)))
    if token:
        return f"Bearer {token.strip()}"
    if user.username:
        pair = f"{user.username}:{user.password or ''}"
        return f"Basic {base64.b64encode(pair.encode()).decode()}"
    return ""


def _impersonation(user: kubeconfig.User) -> Iterator[tuple[str, str]]:
    for name, text in (("User", user.as_user), ("Uid", user.as_uid)):
        if text:
            yield f"Impersonate-{name}", text
    for group in user.as_groups or ():
        yield "Impersonate-Group", group
    for key, values in (user.as_user_extra or {}).items():
        for value in values:
            yield f"Impersonate-Extra-{quote(key, safe='')}", value


def _content(data: str | None, path: str | None) -> bytes:
    # The data takes precedence, as in client-go.
    if data or not path:
        return kubeconfig.decoded(data or "")
    return _filled(path, bounded_file.read(Path(path), _MOST_BYTES))


def _filled(path: str, content: AnyStr) -> AnyStr:
    """Return a file's content; raise SettingsError if it is empty, as while it is written."""
    if not content.strip():
        raise SettingsError(f"{path} is empty: write it again, or correct its path")
    return content


def _text(path: Path) -> str:
    try:
        return bounded_file.read(path, _MOST_BYTES).decode().strip()  # a file ends with a newline
    except UnicodeDecodeError as err:
        raise SettingsError(f"{path} is not text in UTF-8") from err


@contextmanager
def _path_of(content: bytes) -> Iterator[str | None]:
    """Yield the path of a file for OpenSSL, which loads certificates from files; None if empty."""
    if not content:
        yield None
    elif sys.platform == "linux":  # in memory: containers may have no folder to write to
        with os.fdopen(os.memfd_create("certificate"), "wb", buffering=0) as file:
            file.write(content)
            yield f"/proc/self/fd/{file.fileno()}"
    else:
        with TemporaryDirectory() as folder:
            path = Path(folder, "certificate")
            path.write_bytes(content)
            yield str(path)
