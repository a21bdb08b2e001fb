"""Run the credential plugin that a kubeconfig names.

The format is ExecCredential of client.authentication.k8s.io (Kubernetes documentation, "client-go
credential plugins"). Its expirationTimestamp is of another machine's clock and is not read: the
plugin runs again once the API server rejects the credentials.
"""

import base64
import os
import subprocess
import sys
from typing import Any, Final

import msgspec

from gpushare.errors import UNDECODABLE, SettingsError
from gpushare.kube.connection.kubeconfig import Cluster, Exec, User

_MOST_SHOWN: Final = 1000
_EXTENSION: Final = "client.authentication.k8s.io/exec"


class _Status(msgspec.Struct, rename="camel"):
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""


class _Credential(msgspec.Struct, rename="camel"):
    api_version: str
    status: _Status


def user_of(program: Exec, cluster: Cluster, authority: bytes, seconds: float | None) -> User:
    """Return the plugin's credentials as a kubeconfig's user; raise SettingsError on failure.

    Blocks while the plugin runs, for ``seconds`` at most if given. If a user is there to answer it,
    its questions on stderr are shown.
    """
    command, version = program.command, program.api_version
    where = f"the credential plugin {command!r} failed"
    mode = program.interactive_mode
    can_ask = sys.stdin is not None and sys.stdin.isatty() and seconds is None
    if mode == "Always" and not can_ask:
        raise SettingsError(f"{where}: it asks questions, and nobody can answer: use a terminal")
    is_interactive = can_ask and mode != "Never"
    spec: dict[str, Any] = {"interactive": is_interactive}
    if program.provides_cluster:
        spec["cluster"] = _told(cluster, authority)
    request = {"apiVersion": version, "kind": "ExecCredential", "spec": spec}
    more = {each.name: each.value for each in program.env or ()}
    env = {**os.environ, **more, "KUBERNETES_EXEC_INFO": msgspec.json.encode(request).decode()}
    words = [command, *(program.args or ())]
    try:
        ended = subprocess.run(
            words,
            env=env,
            stdin=None if is_interactive else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=None if is_interactive else subprocess.PIPE,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as err:
        raise SettingsError(f"{where}: no answer within {seconds:g} s") from err
    except FileNotFoundError as err:
        hint = f": {program.install_hint}" if program.install_hint else ""
        raise SettingsError(f"{where}: it is not installed{hint}") from err
    except (OSError, ValueError) as err:
        raise SettingsError(f"{where}: {err}") from err
    if ended.returncode:
        shown = (ended.stderr or b"").decode(errors="replace").strip()[-_MOST_SHOWN:]
        raise SettingsError(f"{where}: exit status {ended.returncode}: {shown}".rstrip(": "))
    try:
        found = msgspec.json.decode(ended.stdout, type=_Credential)
    except UNDECODABLE as err:  # the output is not repeated: it may be a token
        raise SettingsError(f"{where}: its output is not an ExecCredential: {err}") from err
    if found.api_version != version:
        raise SettingsError(
            f"{where}: its output has apiVersion {found.api_version!r}, the kubeconfig {version!r}"
        )
    status = found.status
    certificate, key = (
        base64.b64encode(text.encode()).decode()
        for text in (status.client_certificate_data, status.client_key_data)
    )
    if not status.token and not (certificate and key):
        raise SettingsError(f"{where}: missing token, or clientCertificateData and clientKeyData")
    return User(token=status.token, client_certificate_data=certificate, client_key_data=key)


def _told(cluster: Cluster, authority: bytes) -> dict[str, Any]:
    """Return what a plugin with provideClusterInfo learns about the cluster."""
    extensions = {each.name: each.extension for each in cluster.extensions or ()}
    told = {
        "server": cluster.server,
        "tls-server-name": cluster.tls_server_name,
        "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify,
        "certificate-authority-data": base64.b64encode(authority).decode(),
        "proxy-url": cluster.proxy_url,
        "config": extensions.get(_EXTENSION),
    }
    return {key: value for key, value in told.items() if value}
