"""Find the cluster and the credentials to use: those of a kubeconfig, or the pod's own.

The extender and the device plugin run in pods and use the pod's own cluster by default. The command
line uses what kubectl would use: a CI runner or a notebook is also a pod, with a kubeconfig of
another cluster. kubectl falls back to the pod's own cluster if a named kubeconfig is empty
(k8s.io/client-go, tools/clientcmd/merged_client_builder.go); here that is an error.
"""

import asyncio
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from kubernetes.aio import client, config

from gpushare.errors import SettingsError
from gpushare.kube.connection import exec_credential
from gpushare.kube.connection import kubeconfig as kubeconfigs
from gpushare.kube.connection.credentials import Source
from gpushare.process import daemon_thread

_HOW: Final = "name a kubeconfig with --kubeconfig or the variable KUBECONFIG"
_HOME: Final = "~/.kube/config"
_OWN_NAMESPACE: Final = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
_MOST_BYTES: Final = 16 * 2**20
_AGAIN_SECONDS: Final = 30.0  # for a credential plugin that runs again


@dataclass(frozen=True, slots=True)
class Configured:
    """``namespace`` is the default one; ``source`` reads the credentials again."""

    settings: client.Configuration
    namespace: str
    source: Source


async def configured(
    kubeconfig: str | None, context: str | None, *, as_kubectl: bool
) -> Configured:
    """Return how to reach the cluster. Raises SettingsError.

    ``as_kubectl``: $KUBECONFIG and ~/.kube/config take precedence over the pod's ServiceAccount.
    """
    in_pod = "KUBERNETES_SERVICE_HOST" in os.environ
    found = None
    if as_kubectl or kubeconfig or context or not in_pod:
        found = _chosen(kubeconfig, context)
    if found is not None:
        settings = await daemon_thread.call(partial(_of, found, None), "kubeconfig")
        # A credential plugin or an auth-provider would be expensive to run every minute.
        is_followed = not (found.user.get("exec") or found.user.get("auth-provider"))
        namespace = found.namespace or (_own_namespace() if in_pod else "default")
        source = Source(partial(_of, found, _AGAIN_SECONDS), is_followed)
        return Configured(settings, namespace, source)
    if not in_pod or context:
        raise SettingsError(f"there is no kubeconfig in {_HOME}: {_HOW}")
    source = Source(_of_pod, is_followed=True)
    return Configured(source.read(), _own_namespace(), source)


def _of_pod() -> client.Configuration:
    settings = client.Configuration()
    try:
        # The library would use the wall clock to decide when to read the token again.
        config.load_incluster_config(client_configuration=settings, try_refresh_token=False)
    except (config.ConfigException, OSError, ValueError) as err:
        raise SettingsError(f"the pod's own ServiceAccount cannot be used: {err} {_HOW}") from err
    return settings


def _chosen(kubeconfig: str | None, context: str | None) -> kubeconfigs.Chosen | None:
    """Return the context of the named files, else that of ~/.kube/config; None if it is empty."""
    listed = os.environ.get("KUBECONFIG", "")
    named = [kubeconfig] if kubeconfig else [path for path in listed.split(os.pathsep) if path]
    is_named = bool(kubeconfig or listed)
    files = [
        (path, content)
        for path in dict.fromkeys(map(os.path.expanduser, named if is_named else [_HOME]))
        if (content := _content(path)) is not None
    ]
    if is_named and not files:
        raise SettingsError(f"there is no file {' or '.join(named) or repr(listed)}: {_HOW}")
    found = kubeconfigs.choose(files, context)
    if is_named and found is None:
        where = " and ".join(path for path, _ in files)
        raise SettingsError(f"{where} has no clusters, users and contexts: {_HOW}")
    return found


def _content(path: str) -> bytes | None:
    try:
        with Path(path).open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as err:
        why = err.strerror if isinstance(err, OSError) else err
        raise SettingsError(f"{path!r} cannot be read: {why}") from err
    if len(content) > _MOST_BYTES:
        raise SettingsError(f"{path} has more than {_MOST_BYTES} bytes: it is not a kubeconfig")
    return content


def _of(found: kubeconfigs.Chosen, seconds: float | None) -> client.Configuration:
    """Load a context with its files; run its credential plugin for ``seconds`` at most."""
    settings, user = client.Configuration(), found.user
    if program := user.get("exec"):
        try:
            user = exec_credential.user_of(program, seconds)
        except SettingsError as err:
            raise SettingsError(f"{found.where}: {err}") from err
    whole = {
        "clusters": [{"name": "chosen", "cluster": found.cluster}],
        "users": [{"name": "chosen", "user": user}],
        "contexts": [{"name": "chosen", "context": {"cluster": "chosen", "user": "chosen"}}],
        "current-context": "chosen",
    }
    try:
        asyncio.run(config.load_kube_config_from_dict(whole, client_configuration=settings))
    except Exception as err:  # the library raises whatever its parts raise
        raise SettingsError(f"{found.where} cannot be used: {err}") from err
    return settings


def _own_namespace() -> str:
    if found := os.environ.get("POD_NAMESPACE", ""):
        return found
    try:
        return Path(_OWN_NAMESPACE).read_text(encoding="utf-8").strip() or "default"
    except (OSError, UnicodeDecodeError):
        return "default"
