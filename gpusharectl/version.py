"""``gpushare version``: the versions of this program, the extenders and the device plugins."""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from importlib import metadata
from typing import Final

import click
import msgspec

from gpushare.errors import UNDECODABLE, ApiError, GpushareError
from gpushare.text.counted import counted
from gpusharectl.reach import extender
from gpusharectl.reach.at_once import each_of
from gpusharectl.reach.extender import all_pods, is_extender
from gpusharectl.reach.options import Target, asks_an_extender
from gpusharectl.reach.plugin_pages import is_plugin, plugin_page
from gpusharectl.terminal.exits import NOT_REACHED
from gpusharectl.terminal.output import output, show, show_document

_PAGE: Final = "/version"
_NAMED: Final = 3  # nodes; of more, the number is shown


class Running(msgspec.Struct, rename="camel"):
    """A program; ``node`` is empty for an extender that is asked by its URL."""

    name: str
    node: str
    version: str


class Versions(msgspec.Struct, rename="camel"):
    """``extenders`` and ``plugins`` are None if they were not asked for."""

    client: str
    extenders: list[Running] | None = None
    plugins: list[Running] | None = None
    not_shown: list[str] = []


class _About(msgspec.Struct):
    version: str


@click.command("version")
@click.option("--client", "only_client", is_flag=True, help="Show only this program's version.")
@output()
@asks_an_extender
async def version(target: Target, *, only_client: bool, output: str) -> None:
    """Show the versions of gpushare's programs.

    The exit code is 3 if a program cannot be asked.
    """
    found = Versions(metadata.version("gpushare"))
    if not only_client:
        await _add_running(target, found)
    if output == "text":
        show(_lines(found))
    else:
        show_document(found, output)
    if found.not_shown:
        raise click.exceptions.Exit(NOT_REACHED)


async def _add_running(target: Target, found: Versions) -> None:
    """Add what the programs in the cluster answer, or why they are not asked."""

    async def by_url(_: str) -> bytes:
        async with extender.extender(target, kube) as asked:
            return await asked.get(_PAGE)

    async def of_extender(pod: str) -> bytes:
        async with extender.by_pod(kube, target.system, pod) as asked:
            return await asked.get(_PAGE)

    async def of_plugin(pod: str) -> bytes:
        return await plugin_page(kube, target.system, pod, _PAGE)

    try:
        async with target.connect() as kube:
            if target.server is not None:
                found.extenders = await _asked({target.server: ""}, by_url, found)
            running = [each for each in await all_pods(kube, target.system) if each.node]
            extenders = {each.metadata.name: each.node for each in running if is_extender(each)}
            plugins = {each.metadata.name: each.node for each in running if is_plugin(each)}
            if target.server is None:
                found.extenders = await _asked(extenders, of_extender, found)
            found.plugins = await _asked(plugins, of_plugin, found)
    except GpushareError as err:
        found.not_shown.append(str(err))


async def _asked(
    nodes: Mapping[str, str], ask: Callable[[str], Awaitable[bytes]], found: Versions
) -> list[Running]:
    """Ask the programs of ``nodes``, which has their nodes by name."""

    async def version_of(name: str) -> str:
        try:
            return msgspec.json.decode(await ask(name), type=_About).version
        except (ApiError, *UNDECODABLE) as err:
            found.not_shown.append(str(err))
            return ""

    versions = await each_of(sorted(nodes), version_of)
    return [Running(name, nodes[name], text) for name, text in versions.items() if text]


def _lines(found: Versions) -> Iterator[str]:
    yield f"client: {found.client}"
    for kind, running in (("extenders", found.extenders), ("device plugins", found.plugins)):
        if running is not None:
            yield f"{kind}: {', '.join(_counted(running)) or 'none'}"
    for why in dict.fromkeys(found.not_shown):
        yield f"not shown: {why}"


def _counted(running: Sequence[Running]) -> Iterator[str]:
    by_version: dict[str, list[str]] = {}
    for each in running:
        by_version.setdefault(each.version, []).append(each.node or each.name)
    for version_, places in sorted(by_version.items()):
        is_short = len(places) <= _NAMED
        yield f"{version_} on {', '.join(places) if is_short else counted(len(places), 'node')}"
