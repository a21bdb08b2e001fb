"""Which cluster is meant, and who we are there: a kubeconfig's, or the pod's own.

The two halves run in pods, and mean the pod's own cluster unless they are told otherwise. People
mean what kubectl would: a CI runner or a notebook is in a pod too, and has a kubeconfig of another
cluster. kubectl comes to the pod's own cluster also by a kubeconfig that is named and says nothing
(k8s.io/client-go, tools/clientcmd/merged_client_builder.go); that is refused here.
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

_VARIABLE: Final = "KUBECONFIG"
_HOME: Final = "~/.kube/config"
_OWN_NAMESPACE: Final = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
_MOST_BYTES: Final = 16 * 2**20
_AGAIN_SECONDS: Final = 30.0  # for a program that says again who we are


@dataclass(frozen=True, slots=True)
class Configured:
    """``namespace`` holds where none is named; ``source`` reads who we are again."""

    settings: client.Configuration
    namespace: str
    source: Source


async def configured(
    kubeconfig: str | None, context: str | None, *, as_kubectl: bool
) -> Configured:
    """How to reach the cluster that is meant. Raises SettingsError.

    ``as_kubectl``: $KUBECONFIG and the file at home come before the pod's own ServiceAccount.
    """
    in_pod = "KUBERNETES_SERVICE_HOST" in os.environ
    found = None
    if as_kubectl or kubeconfig or context or not in_pod:
        found = _chosen(kubeconfig, context)
    if found is not None:
        settings = await daemon_thread.call(partial(_of, found, None), "kubeconfig")
        # A program, and what an auth-provider asks for, would cost much each minute.
        is_followed = not (found.user.get("exec") or found.user.get("auth-provider"))
        namespace = found.namespace or (_own_namespace() if in_pod else "default")
        source = Source(partial(_of, found, _AGAIN_SECONDS), is_followed)
        return Configured(settings, namespace, source)
    if not in_pod or context:
        raise SettingsError(
            f"there is nothing in {_HOME}: --kubeconfig or the variable {_VARIABLE} names a file"
        )
    source = Source(_of_pod, is_followed=True)
    return Configured(source.read(), _own_namespace(), source)


def _of_pod() -> client.Configuration:
    settings = client.Configuration()
    try:
        # The library would look at the wall clock for when to read the token again.
        config.load_incluster_config(client_configuration=settings, try_refresh_token=False)
    except (config.ConfigException, OSError, ValueError) as err:
        raise SettingsError(
            f"the pod's own ServiceAccount cannot be used: {err} "
            f"--kubeconfig or the variable {_VARIABLE} names a kubeconfig"
        ) from err
    return settings


def _chosen(kubeconfig: str | None, context: str | None) -> kubeconfigs.Chosen | None:
    """Of the files that are named; else of the one at home, None where that has nothing."""
    listed = os.environ.get(_VARIABLE, "")
    named = [kubeconfig] if kubeconfig else [path for path in listed.split(os.pathsep) if path]
    is_named = bool(kubeconfig or listed)
    files = [
        (path, content)
        for path in dict.fromkeys(map(os.path.expanduser, named if is_named else [_HOME]))
        if (content := _content(path)) is not None
    ]
    if is_named and not files:
        raise SettingsError(f"there is no file {' or '.join(named) or repr(listed)}: {_how()}")
    found = kubeconfigs.choose(files, context)
    if is_named and found is None:
        where = " and ".join(path for path, _ in files)
        raise SettingsError(f"{where} has no clusters, users and contexts: {_how()}")
    return found


def _how() -> str:
    return f"--kubeconfig or the variable {_VARIABLE} names a kubeconfig"


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
        raise SettingsError(f"{path} has more than {_MOST_BYTES} bytes: it is no kubeconfig")
    return content


def _of(found: kubeconfigs.Chosen, seconds: float | None) -> client.Configuration:
    """Read a kubeconfig's files, and run its program for ``seconds`` at most."""
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
    except Exception as err:  # the library lets through whatever its parts raise
        raise SettingsError(f"{found.where} cannot be used: {err}") from err
    return settings


def _own_namespace() -> str:
    """That of the pod, as kubectl finds it."""
    if told := os.environ.get("POD_NAMESPACE", ""):
        return told
    try:
        return Path(_OWN_NAMESPACE).read_text(encoding="utf-8").strip() or "default"
    except (OSError, UnicodeDecodeError):
        return "default"
