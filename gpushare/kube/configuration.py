"""Which cluster is meant, and who we are there: a kubeconfig's, or the pod's own.

The two halves run in pods, and mean the pod's own cluster unless they are told otherwise. People
mean what kubectl would: a CI runner or a notebook is in a pod too, and has a kubeconfig of another
cluster. kubectl comes to the pod's own cluster also by a kubeconfig that is named and says nothing
(k8s.io/client-go, tools/clientcmd/merged_client_builder.go); that is refused here.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from kubernetes.aio import client, config

from gpushare.errors import SettingsError
from gpushare.kube import kubeconfig as kubeconfigs

_VARIABLE: Final = "KUBECONFIG"
_HOME: Final = "~/.kube/config"
_OWN_NAMESPACE: Final = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
_MOST_BYTES: Final = 16 * 2**20
_LIBRARY: Final = logging.getLogger("kubernetes.aio.config.kube_config")


async def configured(
    kubeconfig: str | None, context: str | None, *, as_kubectl: bool
) -> tuple[client.Configuration, str]:
    """The settings, and the namespace where none is named. Raises SettingsError.

    ``as_kubectl``: $KUBECONFIG and the file at home come before the pod's own ServiceAccount.
    """
    in_pod = "KUBERNETES_SERVICE_HOST" in os.environ
    found = None
    if as_kubectl or kubeconfig or context or not in_pod:
        found = _chosen(kubeconfig, context)
    if found is not None:
        return await _of(found), found.namespace or (_own_namespace() if in_pod else "default")
    if not in_pod or context:
        raise SettingsError(
            f"there is nothing in {_HOME}: --kubeconfig or the variable {_VARIABLE} names a file"
        )
    settings = client.Configuration()
    try:
        config.load_incluster_config(client_configuration=settings)
    except (config.ConfigException, OSError, ValueError) as err:
        raise SettingsError(
            f"the pod's own ServiceAccount cannot be used: {err} "
            f"--kubeconfig or the variable {_VARIABLE} names a kubeconfig"
        ) from err
    return settings, _own_namespace()


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


async def _of(found: kubeconfigs.Chosen) -> client.Configuration:
    settings = client.Configuration()
    whole = {
        "clusters": [{"name": "chosen", "cluster": found.cluster}],
        "users": [{"name": "chosen", "user": found.user}],
        "contexts": [{"name": "chosen", "context": {"cluster": "chosen", "user": "chosen"}}],
        "current-context": "chosen",
    }
    try:
        with _told() as lines:
            await config.load_kube_config_from_dict(whole, client_configuration=settings)
    except Exception as err:  # the library lets through whatever its parts raise
        raise SettingsError(f"{found.where} cannot be used: {err}") from err
    if lines:
        command = found.user.get("exec", {}).get("command", "")
        raise SettingsError(
            f"{found.where}: the program {command!r}, which is to say who you are, did not: "
            f"{'; '.join(lines)}"
        )
    return settings


@contextmanager
def _told() -> Iterator[list[str]]:
    """What the library tells its log alone: that a program gave no credentials."""
    lines: list[str] = []
    kept = logging.Handler()
    kept.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    was, _LIBRARY.propagate = _LIBRARY.propagate, False
    _LIBRARY.addHandler(kept)
    try:
        yield lines
    finally:
        _LIBRARY.removeHandler(kept)
        _LIBRARY.propagate = was


def _own_namespace() -> str:
    """That of the pod, as kubectl finds it."""
    if told := os.environ.get("POD_NAMESPACE", ""):
        return told
    try:
        return Path(_OWN_NAMESPACE).read_text(encoding="utf-8").strip() or "default"
    except (OSError, UnicodeDecodeError):
        return "default"
