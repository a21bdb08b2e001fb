"""``gpushare inspect``: nodes, GPUs, who has how much of each, and what is free."""

import asyncio
from contextlib import AsyncExitStack, ExitStack, aclosing, suppress
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
from gpusharectl.inspect.summary import Sight
from gpusharectl.reach.completion import complete_node
from gpusharectl.reach.extender import Extender, extender
from gpusharectl.reach.options import Target, asks_an_extender
from gpusharectl.reach.rights import Lacking
from gpusharectl.terminal.exits import No
from gpusharectl.terminal.output import console, document, printable_line, show

REACH_SECONDS: Final = 4.0

_decode = msgspec.json.Decoder(ClusterView).decode
_decode_node = msgspec.json.Decoder(NodeView).decode


@click.command("inspect")
@click.argument("node", required=False, shell_complete=complete_node)
@click.option("-d", "--details", is_flag=True, help="With the pods on each GPU.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["wide", "json", "yaml"]),
    help="wide: with model and UUID; the others are for programs.",
)
@click.option("-w", "--watch", is_flag=True, help="Draw again whenever something changes.")
@asks_an_extender
async def command(
    target: Target, node: str | None, *, details: bool, output: str | None, watch: bool
) -> None:
    """Show nodes, GPUs, shares and what is free."""
    async with AsyncExitStack() as stack:
        kube = await stack.enter_async_context(target.connect())
        reserves = await _Reserves.reach(stack, target, kube)
        if not watch:
            with _Screen(details=details, output=output) as screen:
                screen.show(await _sight(kube, node, reserves))
            return
        found = await stack.enter_async_context(aclosing(changes(kube, node or "")))
        with (
            suppress(asyncio.CancelledError),  # Ctrl-C is how it ends
            _Screen(details=details, output=output, again=True) as screen,
        ):
            async for each in found:
                told, why = await reserves.told()
                screen.show(_whole(each, node, told, why))


class _Reserves:
    """What only an extender knows, or why it is not to be had."""

    def __init__(self, asked: Extender | None, why: str) -> None:
        self._asked, self._why = asked, why

    @classmethod
    async def reach(cls, stack: AsyncExitStack, target: Target, kube: Kube) -> Self:
        """Look for an extender, for a short while."""
        try:
            async with asyncio.timeout(REACH_SECONDS):
                return cls(await stack.enter_async_context(extender(target, kube)), "")
        except ApiError as err:
            return cls(None, str(err))
        except TimeoutError:
            return cls(None, f"no extender answers within {REACH_SECONDS:g} s")

    async def told(self) -> tuple[list[NodeView] | None, str]:
        """All nodes as the extender has them; None, and why."""
        if self._asked is None:
            return None, self._why
        try:
            body = await self._asked.get(f"{EXTENDER_PREFIX}/inspect", seconds=REACH_SECONDS)
            return [_decode_node(raw) for raw in _decode(body).nodes], ""
        except ApiError as err:
            return None, str(err)
        except UNDECODABLE as err:
            return None, f"{self._asked.where} answers what cannot be read: {err}"


async def _sight(kube: Kube, node: str | None, reserves: _Reserves) -> Sight:
    told, why = await reserves.told()
    try:
        found = await listed(kube, node or "")
    except Lacking as err:
        if told is None:
            raise
        found = Listed([], [], complete=False, missing=(str(err),))
    if told is not None and not found.nodes and found.missing:
        whole = summary.of_extender(told, [f"as the extender counts it: {found.missing[0]}"])
        return _one(whole, node) if node else whole
    return _whole(found, node, told, why)


def _whole(found: Listed, node: str | None, told: list[NodeView] | None, why: str) -> Sight:
    missing = list(found.missing)
    if told is None:
        missing.append(f"reserves are not shown: {why}")
    whole = summary.of_lists(
        found.nodes, found.pods, told, complete=found.complete, not_shown=missing
    )
    return _one(whole, node) if node else whole


def _one(whole: Sight, node: str) -> Sight:
    found = summary.only(whole, node)
    if not found.nodes and not found.pods:
        raise No(f"node {node} is not there, or shares no GPU by memory")
    return found


class _Screen:
    """Where the views go: one, or one after the other in the same place (``again``)."""

    def __init__(self, *, details: bool, output: str | None, again: bool = False) -> None:
        self._details, self._output, self._again = details, output, again
        self._console = console()
        self._live: Live | None = None
        self._shown: Sight | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        is_screen = self._console.is_terminal and not self._console.is_dumb_terminal
        if self._again and is_screen and self._output in {None, "wide"}:
            self._live = self._stack.enter_context(
                Live(console=self._console, screen=True, auto_refresh=False)
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def show(self, found: Sight) -> None:
        if found == self._shown:
            return
        self._shown = found
        if self._output == "json" and self._again:
            click.echo(msgspec.json.encode(found))  # a line each
        elif self._output in {"json", "yaml"}:
            start = b"---\n" if self._again and self._output == "yaml" else b""
            click.echo(start + document(found, self._output), nl=False)
        else:
            lines = self._lines(found)
            if self._live is not None:
                rows = map(printable_line, fitted(lines, found, self._console.height))
                whole = Text("\n", no_wrap=True, overflow="ellipsis").join(rows)
                self._live.update(whole, refresh=True)
            else:
                show(lines, self._console)

    def _lines(self, found: Sight) -> list[Text]:
        columns = self._console.width if self._console.is_terminal else None
        return list(draw(found, pods=self._details, wide=self._output == "wide", columns=columns))
