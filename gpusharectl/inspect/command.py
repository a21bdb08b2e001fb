"""``gpushare inspect``: nodes, GPUs, which pod uses how much of each, and what is free."""

import asyncio
from contextlib import AsyncExitStack, aclosing, suppress
from typing import Final, Self

import click
import msgspec
from rich.live import Live
from rich.text import Text

from gpushare.answers.inspect import ClusterView, NodeView
from gpushare.contract import EXTENDER_PREFIX
from gpushare.errors import UNDECODABLE, ApiError
from gpushare.kube.client import Kube
from gpusharectl.inspect import summary
from gpusharectl.inspect.follow import Listed, changes, listed
from gpusharectl.inspect.lines import draw, fitted
from gpusharectl.inspect.summary import Overview
from gpusharectl.reach.completion import complete_node
from gpusharectl.reach.extender import Extender, extender_or_reason
from gpusharectl.reach.options import Target, asks_an_extender
from gpusharectl.reach.rights import Lacking
from gpusharectl.terminal.exits import No
from gpusharectl.terminal.output import console, output, printable_line, show, show_document

REACH_SECONDS: Final = 4.0

_decode_node = msgspec.json.Decoder(NodeView).decode


@click.command("inspect")
@click.argument("node", required=False, shell_complete=complete_node)
@click.option("-d", "--details", is_flag=True, help="Show the pods on each GPU.")
@output("wide")
@click.option("-w", "--watch", is_flag=True, help="Show again after each change.")
@asks_an_extender
async def command(
    target: Target, node: str | None, *, details: bool, output: str, watch: bool
) -> None:
    """Show nodes, GPUs, shares and what is free.

    The output format "wide" adds model and UUID of each GPU.
    """
    async with AsyncExitStack() as stack:
        kube = await stack.enter_async_context(target.connect())
        reached = extender_or_reason(target, kube, REACH_SECONDS)
        asked, why = await stack.enter_async_context(reached)
        if not watch:
            with _Screen(details=details, output=output) as screen:
                screen.show(await _overview(kube, node, *await _reservations(asked, why)))
            return
        found = await stack.enter_async_context(aclosing(changes(kube, node or "")))
        with (
            suppress(asyncio.CancelledError),  # Ctrl-C ends it
            _Screen(details=details, output=output, again=True) as screen,
        ):
            async for each in found:
                screen.show(_combined(each, node, *await _reservations(asked, why)))


async def _reservations(asked: Extender | None, why: str) -> tuple[list[NodeView] | None, str]:
    """Return all nodes as the extender reports them; None, and why."""
    if asked is None:
        return None, why
    try:
        body = await asked.get(f"{EXTENDER_PREFIX}/inspect", seconds=REACH_SECONDS)
        return [_decode_node(raw) for raw in asked.decoded(body, ClusterView).nodes], ""
    except ApiError as err:
        return None, str(err)
    except UNDECODABLE as err:
        return None, f"{asked.where} sent an answer that cannot be read: {err}"


async def _overview(
    kube: Kube, node: str | None, reported: list[NodeView] | None, why: str
) -> Overview:
    try:
        found = await listed(kube, node or "")
    except Lacking as err:
        if reported is None:
            raise
        found = Listed([], [], complete=False, missing=(str(err),))
    if reported is not None and not found.nodes and found.missing:
        text = f"only what the extender reports is shown: {found.missing[0]}"
        return _only(summary.of_extender(reported, [text]), node)
    return _combined(found, node, reported, why)


def _combined(
    found: Listed, node: str | None, reported: list[NodeView] | None, why: str
) -> Overview:
    missing = list(found.missing)
    if reported is None:
        missing.append(f"reservations are not shown: {why}")
    whole = summary.of_lists(
        found.nodes, found.pods, reported, complete=found.complete, not_shown=missing
    )
    return _only(whole, node)


def _only(whole: Overview, node: str | None) -> Overview:
    if not node:
        return whole
    found = summary.only(whole, node)
    if not found.nodes and not found.pods:
        raise No(f"node {node} does not exist, or does not share GPUs by memory")
    return found


class _Screen:
    """Shows one overview, or (``again``) one after the other in the same place."""

    def __init__(self, *, details: bool, output: str, again: bool = False) -> None:
        self._details, self._output, self._again = details, output, again
        self._console = console()
        self._live: Live | None = None
        self._shown: Overview | None = None

    def __enter__(self) -> Self:
        is_screen = self._console.is_terminal and not self._console.is_dumb_terminal
        if self._again and is_screen and self._output in {"text", "wide"}:
            self._live = Live(console=self._console, screen=True, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, found: Overview) -> None:
        if found == self._shown:
            return
        self._shown = found
        if self._output == "json" and self._again:
            click.echo(msgspec.json.encode(found))  # a line each
        elif self._output in {"json", "yaml"}:
            if self._again and self._output == "yaml":
                click.echo("---")
            show_document(found, self._output)
        elif self._live is None:
            show(self._lines(found), self._console)
        else:
            rows = map(printable_line, fitted(self._lines(found), found, self._console.height))
            whole = Text("\n", no_wrap=True, overflow="ellipsis").join(rows)
            self._live.update(whole, refresh=True)

    def _lines(self, found: Overview) -> list[Text]:
        columns = self._console.width if self._console.is_terminal else None
        return list(draw(found, pods=self._details, wide=self._output == "wide", columns=columns))
