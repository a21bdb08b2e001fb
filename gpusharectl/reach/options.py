"""Options that every command has which asks a cluster, and the connection that they mean."""

import asyncio
import re
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, Final, TypeVar

import click

from gpushare.kube.client import Kube

NAMESPACE: Final = "gpushare-system"
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")  # RFC 1123, as namespaces have it

T = TypeVar("T")


text_or_json = click.option(
    "-o",
    "output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="json: the form that docs/doctor.md describes.",
)


@dataclass(frozen=True, slots=True)
class Target:
    """Which cluster is asked; ``system`` is the namespace that gpushare runs in.

    ``server`` is the URL of an extender's reading listener, None to reach its pod.
    """

    kubeconfig: str | None
    context: str | None
    system: str
    server: str | None = None
    server_ca: str | None = None

    def connect(self) -> AbstractAsyncContextManager[Kube]:
        """Open the API server with the user's own rights; SettingsError where that cannot be."""
        return Kube.connect(self.kubeconfig, context=self.context, as_kubectl=True)


def _checked(_ctx: click.Context, _option: click.Parameter, name: str) -> str:
    """The name as it is: in a path an empty one would mean all namespaces, or the namespaces."""
    if not _NAME.fullmatch(name):
        raise click.BadParameter(f"{name!r} is no name of a namespace")
    return name


def asks_a_cluster(command: Callable[..., Coroutine[Any, Any, T]]) -> Callable[..., T]:
    """Give a command the options; run it as a coroutine with the Target as its first argument."""

    @click.option("--kubeconfig", metavar="FILE", help="As kubectl has it.")
    @click.option("--context", metavar="NAME", help="As kubectl has it.")
    @click.option(
        "--system-namespace",
        default=NAMESPACE,
        show_default=True,
        metavar="NAME",
        callback=_checked,
        help="Where gpushare itself runs.",
    )
    @wraps(command)
    def run(kubeconfig: str | None, context: str | None, system_namespace: str, **rest: Any) -> T:
        return asyncio.run(command(Target(kubeconfig, context, system_namespace), **rest))

    return run


def asks_an_extender(command: Callable[..., Coroutine[Any, Any, T]]) -> Callable[..., T]:
    """The same, for a command that asks an extender too."""

    @asks_a_cluster
    @click.option(
        "--server",
        metavar="URL",
        help="An extender's reading listener, in place of a port-forward to its pod.",
    )
    @click.option("--server-ca", metavar="FILE", help="Who vouches for --server's certificate.")
    @wraps(command)
    async def run(target: Target, server: str | None, server_ca: str | None, **rest: Any) -> T:
        if server_ca is not None and not (server or "").startswith("https:"):
            raise click.UsageError("--server-ca: only with --server https://...")
        return await command(replace(target, server=server, server_ca=server_ca), **rest)

    return run
