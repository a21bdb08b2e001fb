"""Find the cluster and the credentials to use: those of a kubeconfig, or the pod's own.

The extender and the device plugin run in pods and use the pod's own cluster by default. The command
line uses what kubectl would use: a CI runner or a notebook is also a pod, with a kubeconfig of
another cluster. kubectl falls back to the pod's own cluster if a named kubeconfig is empty
(k8s.io/client-go, tools/clientcmd/merged_client_builder.go); here that is an error.
"""

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from gpushare.errors import SettingsError
from gpushare.kube.connection import bounded_file
from gpushare.kube.connection import kubeconfig as kubeconfigs
from gpushare.kube.connection.access import Access, of_context, of_pod, own_namespace
from gpushare.kube.connection.credentials import Source
from gpushare.process import daemon_thread

_HOW: Final = "name a kubeconfig with --kubeconfig or the variable KUBECONFIG"
_HOME: Final = "~/.kube/config"
_MOST_BYTES: Final = 16 * 2**20
_AGAIN_SECONDS: Final = 30.0  # for a credential plugin that runs again


@dataclass(frozen=True, slots=True)
class Configured:
    """``namespace`` is the default one; ``source`` reads the credentials again."""

    access: Access
    namespace: str
    source: Source


async def configured(
    kubeconfig: str | None,
    context: str | None,
    *,
    as_kubectl: bool,
    plugin_seconds: float | None = None,
) -> Configured:
    """Return how to reach the cluster. Raises SettingsError.

    ``as_kubectl``: $KUBECONFIG and ~/.kube/config take precedence over the pod's ServiceAccount.
    With ``plugin_seconds`` a credential plugin has this time limit and asks no questions.
    """
    in_pod = "KUBERNETES_SERVICE_HOST" in os.environ
    found = None
    if as_kubectl or kubeconfig or context or not in_pod:
        found = _chosen(kubeconfig, context)
    if found is not None:
        first = await daemon_thread.call(partial(of_context, found, plugin_seconds), "kubeconfig")
        namespace = found.namespace or (own_namespace() if in_pod else "default")
        again = partial(of_context, found, _AGAIN_SECONDS)
        # A credential plugin would be expensive to run every minute.
        return Configured(first, namespace, Source(again, is_followed=found.user.exec is None))
    if not in_pod or context:
        raise SettingsError(f"there is no kubeconfig in {_HOME}: {_HOW}")
    source = Source(_of_pod, is_followed=True)
    return Configured(source.read(), own_namespace(), source)


def _of_pod() -> Access:
    try:
        return of_pod()
    except SettingsError as err:
        raise SettingsError(f"the pod's own ServiceAccount cannot be used: {err}; {_HOW}") from err


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
        return bounded_file.read(Path(path), _MOST_BYTES)
    except bounded_file.NoFile:
        return None
