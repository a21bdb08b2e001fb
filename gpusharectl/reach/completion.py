"""Complete names from the cluster in a shell: quickly, and without messages."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

import click
import msgspec
from click.shell_completion import CompletionItem

from gpushare.annotations.pod_annotations import asks_for_share
from gpushare.errors import GpushareError
from gpushare.kube.client import Kube
from gpushare.kube.lists import list_all
from gpushare.kube.paths import Collection
from gpushare.objects.model import ObjectMeta
from gpushare.placement.verdict import cards_of
from gpusharectl.reach.extender import all_nodes, all_pods
from gpusharectl.reach.options import Target

SECONDS: Final = 2.0


class _Named(msgspec.Struct):
    metadata: ObjectMeta


def complete_node(ctx: click.Context, _: click.Parameter, begun: str) -> list[CompletionItem]:
    """Complete names of nodes that share GPUs."""

    async def names(kube: Kube, _: str) -> list[str]:
        return [each.name for each in await all_nodes(kube) if cards_of(each, 1)[0] is not None]

    return _named(ctx, begun, names)


def complete_pod(ctx: click.Context, _: click.Parameter, begun: str) -> list[CompletionItem]:
    """Complete names of the namespace's pods that request GPU memory."""

    async def names(kube: Kube, namespace: str) -> list[str]:
        pods = await all_pods(kube, namespace)
        return [each.metadata.name for each in pods if asks_for_share(each)]

    return _named(ctx, begun, names)


def complete_namespace(ctx: click.Context, _: click.Parameter, begun: str) -> list[CompletionItem]:
    """Complete names of namespaces."""

    async def names(kube: Kube, _: str) -> list[str]:
        found = await list_all(kube, Collection("/api/v1/namespaces"), _Named)
        return [each.metadata.name for each in found]

    return _named(ctx, begun, names)


def _named(
    ctx: click.Context, begun: str, names: Callable[[Kube, str], Awaitable[list[str]]]
) -> list[CompletionItem]:
    logging.disable()

    async def ask() -> list[str]:
        given: dict[str, Any] = ctx.params
        target = Target(given.get("kubeconfig"), given.get("context"), "")
        async with asyncio.timeout(SECONDS), target.connect(SECONDS) as kube:
            return await names(kube, given.get("namespace") or kube.namespace)

    try:
        found = asyncio.run(ask())
    except (GpushareError, TimeoutError, OSError, UnicodeError):
        return []
    finally:
        logging.disable(logging.NOTSET)
    return [CompletionItem(name) for name in sorted(found) if name.startswith(begun)]
