"""Options to choose the cluster and the extender, and the connection they describe."""

import asyncio
import re
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import wraps
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource

from gpushare.kube.client import Kube
from gpushare.kube.connection.kubeconfig import is_url

NAMESPACE: Final = "gpushare-system"
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")  # RFC 1123, as namespaces have it

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


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

    def connect(self, plugin_seconds: float | None = None) -> AbstractAsyncContextManager[Kube]:
        """Connect to the API server as the user; SettingsError for an unusable kubeconfig.

        With ``plugin_seconds`` a credential plugin has this time limit and asks no questions.
        """
        return Kube.connect(
            self.kubeconfig,
            context=self.context,
            as_kubectl=True,
            plugin_seconds=plugin_seconds,
        )


def checked_namespace(
    _ctx: click.Context, _option: click.Parameter, name: str | None
) -> str | None:
    """Reject what is not a name: in a path an empty one would mean all namespaces."""
    if name is not None and not _NAME.fullmatch(name):
        raise click.BadParameter(f"{name!r} is not a namespace name")
    return name


def checked_server(_ctx: click.Context, _option: click.Parameter, server: str | None) -> str | None:
    """Reject what is not a URL; an empty text is no server."""
    if not server:
        return None
    if not is_url(server):
        raise click.BadParameter(f"{server!r}: write http://HOST:PORT or https://HOST:PORT")
    return server


def system_namespace(help_text: str) -> Callable[[F], F]:
    """Return the option ``--system-namespace``, whose value is the name of a namespace."""
    return click.option(
        "--system-namespace",
        default=NAMESPACE,
        show_default=True,
        metavar="NAME",
        callback=checked_namespace,
        help=help_text,
    )


def asks_a_cluster(command: Callable[..., Coroutine[Any, Any, T]]) -> Callable[..., T]:
    """Add the options; run the command as a coroutine with the Target as first argument."""

    @click.option("--kubeconfig", metavar="FILE", type=click.Path(), help="Same as in kubectl.")
    @click.option("--context", metavar="NAME", help="Same as in kubectl.")
    @system_namespace("Namespace of gpushare itself.")
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
            source = click.get_current_context().get_parameter_source("server_ca")
            if source is not ParameterSource.ENVIRONMENT:
                raise click.UsageError("--server-ca: only with --server https://...")
        target = Target(kubeconfig, context, system_namespace, server, server_ca)
        return asyncio.run(command(target, **rest))

    return run


def asks_an_extender(command: Callable[..., Coroutine[Any, Any, T]]) -> Callable[..., T]:
    """Add the options for a command that asks an extender, too."""
    server = click.option(
        "--server",
        metavar="URL",
        callback=checked_server,
        envvar="GPUSHARE_SERVER",
        show_envvar=True,
        help="An extender's reading listener, instead of a port-forward to its pod.",
    )
    authority = click.option(
        "--server-ca",
        metavar="FILE",
        type=click.Path(),
        envvar="GPUSHARE_SERVER_CA",
        show_envvar=True,
        help="CA of --server's certificate.",
    )
    return server(authority(asks_a_cluster(command)))
