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

_MOST_SHOWN: Final = 1000


class _Status(msgspec.Struct, rename="camel"):
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""


class _Credential(msgspec.Struct, rename="camel"):
    api_version: str
    status: _Status


def user_of(program: dict[str, Any], seconds: float | None) -> dict[str, str]:
    """Return the plugin's credentials as a kubeconfig's user; raise SettingsError on failure.

    Blocks while the plugin runs, for ``seconds`` at most if given.
    """
    command, version = program["command"], program["apiVersion"]
    where = f"the credential plugin {command!r} failed"
    request = {
        "apiVersion": version,
        "kind": "ExecCredential",
        "spec": {"interactive": sys.stdin is not None and sys.stdin.isatty()},
    }
    more = {each["name"]: each["value"] for each in program.get("env") or ()}
    env = {**os.environ, **more, "KUBERNETES_EXEC_INFO": msgspec.json.encode(request).decode()}
    words = [command, *(program.get("args") or ())]
    try:
        ended = subprocess.run(words, env=env, capture_output=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired as err:
        raise SettingsError(f"{where}: no answer within {seconds:g} s") from err
    except (OSError, ValueError) as err:
        raise SettingsError(f"{where}: {err}") from err
    if ended.returncode:
        shown = ended.stderr.decode(errors="replace").strip()[-_MOST_SHOWN:]
        raise SettingsError(f"{where}: exit status {ended.returncode}: {shown}")
    try:
        found = msgspec.json.decode(ended.stdout, type=_Credential)
    except UNDECODABLE as err:  # the output is not repeated: it may be a token
        raise SettingsError(f"{where}: its output is not an ExecCredential: {err}") from err
    if found.api_version != version:
        raise SettingsError(
            f"{where}: its output has apiVersion {found.api_version!r}, the kubeconfig {version!r}"
        )
    status = found.status
    if status.token:
        return {"token": status.token}
    if not (status.client_certificate_data and status.client_key_data):
        raise SettingsError(f"{where}: missing token, or clientCertificateData and clientKeyData")
    plain = {"certificate": status.client_certificate_data, "key": status.client_key_data}
    return {
        f"client-{kind}-data": base64.b64encode(text.encode()).decode()
        for kind, text in plain.items()
    }
