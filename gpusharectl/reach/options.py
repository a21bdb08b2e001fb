"""Options to choose the cluster and the extender, and the connection they describe."""

import asyncio
import re
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import wraps
from typing import Any, Final, TypeVar

import click

from gpushare.kube.client import Kube

NAMESPACE: Final = "gpushare-system"
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")  # RFC 1123, as namespaces have it

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Target:
    """The cluster to ask; ``system`` is the namespace that gpushare runs in.

    ``server`` is the URL of an extender's reading listener, None for a port-forward to its pod.
    """

    kubeconfig: str | None
    context: str | None
    system: str
    server: str | None = None
    server_ca: str | None = None

    def connect(self) -> AbstractAsyncContextManager[Kube]:
        """Connect to the API server as the user; SettingsError for an unusable kubeconfig."""
        return Kube.connect(self.kubeconfig, context=self.context, as_kubectl=True)


def _checked(_ctx: click.Context, _option: click.Parameter, name: str) -> str:
    """Reject what is not a name: in a path an empty one would mean all namespaces."""
    if not _NAME.fullmatch(name):
        raise click.BadParameter(f"{name!r} is not a namespace name")
    return name


def asks_a_cluster(command: Callable[..., Coroutine[Any, Any, T]]) -> Callable[..., T]:
    """Add the options; run the command as a coroutine with the Target as first argument."""

    @click.option("--kubeconfig", metavar="FILE", help="Same as in kubectl.")
    @click.option("--context", metavar="NAME", help="Same as in kubectl.")
    @click.option(
        "--system-namespace",
        default=NAMESPACE,
        show_default=True,
        metavar="NAME",
        callback=_checked,
        help="Namespace of gpushare itself.",
    )
    @wraps(command)
    def run(
        kubeconfig: str | None,
        context: str | None,
        system_namespace: str,
        server: str | None = None,
        server_ca: str | None = None,
        **rest: Any,
    ) -> T:
        if server_ca is not None and not (server or "").startswith("https:"):
            raise click.UsageError("--server-ca: only with --server https://...")
        target = Target(kubeconfig, context, system_namespace, server, server_ca)
        return asyncio.run(command(target, **rest))

    return run


def asks_an_extender(command: Callable[..., Coroutine[Any, Any, T]]) -> Callable[..., T]:
    """Add the options for a command that asks an extender, too."""
    server = click.option(
        "--server",
        metavar="URL",
        help="An extender's reading listener, instead of a port-forward to its pod.",
    )
    authority = click.option("--server-ca", metavar="FILE", help="CA of --server's certificate.")
    return server(authority(asks_a_cluster(command)))
