"""``gpushare inspect``: nodes, GPUs, which pod uses how much of each, and what is free."""

import asyncio
import datetime as dt
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import replace
from typing import Final, NamedTuple, Self

import click
import msgspec
from rich.live import Live
from rich.text import Text

from gpushare.answers.gangs import NO_GANGS, GangList, GangStates
from gpushare.answers.inspect import ClusterView, NodeView
from gpushare.answers.queue.entries import NO_QUEUE, QueueStates
from gpushare.answers.queue.quotas import QuotaList
from gpushare.answers.queue.reported import ReportedQuotas
from gpushare.contract import EXTENDER_PREFIX
from gpushare.errors import UNDECODABLE, ApiError
from gpushare.groups.sources import key_of
from gpushare.kube.client import Kube
from gpushare.process.lifetime import cancel
from gpushare.text.printable_json import printable_json
from gpusharectl.inspect import summary
from gpusharectl.inspect.follow import changes, listed
from gpusharectl.inspect.lines import draw, fitted
from gpusharectl.inspect.summary import Listed, Overview, Scope
from gpusharectl.inspect.sums import WAITING_SHOWN, below
from gpusharectl.inspect.waiting import MOST_SENTENCES
from gpusharectl.reach.completion import complete_node
from gpusharectl.reach.extender import Extender, extender_or_reason
from gpusharectl.reach.listed_cluster import ListedCluster
from gpusharectl.reach.listed_gangs import ReportedGangs, gangs_of
from gpusharectl.reach.namespace import in_namespace, or_in_all
from gpusharectl.reach.options import Target, asks_an_extender
from gpusharectl.reach.rights import ASK_FOR_SERVER, Lacking
from gpusharectl.terminal.exits import NOT_REACHED, No
from gpusharectl.terminal.output import console, output, printable_line, show, show_document, write
from gpusharectl.terminal.say import say

REACH_SECONDS: Final = 4.0

AGES_SECONDS: Final = 10.0  # after which the screen shows for how long pods have waited

_decode_node = msgspec.json.Decoder(NodeView).decode


@click.command("inspect")
@click.argument("node", required=False, shell_complete=complete_node)
@in_namespace("Show only what the pods of this namespace use.")
@or_in_all("Show all namespaces (default), also with --namespace.")
@click.option(
    "-d", "--details", is_flag=True, help="Show the pods on each GPU, and every Pending pod."
)
@output("wide")
@click.option("-w", "--watch", is_flag=True, help="Show again after each change.")
@asks_an_extender
async def command(
    target: Target,
    node: str | None,
    namespace: str | None,
    *,
    everything: bool,
    details: bool,
    output: str,
    watch: bool,
) -> None:
    """Show nodes, GPUs, shares and what is free.

    The output format "wide" adds model and UUID of each GPU. What you may see is shown; the exit
    code is 3 if you may not see all that you ask for.
    """
    is_short = output in {"text", "wide"} and not details
    scope = Scope(
        node or "",
        "" if everything or namespace is None else namespace,
        WAITING_SHOWN if is_short else MOST_SENTENCES,
    )
    async with AsyncExitStack() as stack:
        kube = await stack.enter_async_context(target.connect())
        reached = extender_or_reason(target, kube, REACH_SECONDS)
        asked, why = await stack.enter_async_context(reached)
        if not watch:
            found = await _overview(kube, asked, scope, *await _reservations(asked, why))
            with _Screen(details=details, output=output) as screen:
                screen.show(found)
            if found.namespaces is None and not (scope.namespace and found.waiting is not None):
                raise click.exceptions.Exit(NOT_REACHED)
            return
        listings = await stack.enter_async_context(aclosing(changes(kube, scope)))
        with (
            suppress(asyncio.CancelledError),  # Ctrl-C ends it
            _Screen(details=details, output=output, again=True) as screen,
        ):
            ages = asyncio.create_task(screen.keep_ages())
            stack.push_async_callback(cancel, [ages])
            async for each in listings:
                told, hinted = await _told(kube, asked, each), _hinted(each, asked, scope)
                screen.show(_combined(hinted, told, scope, *await _reservations(asked, why)))


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


class _Told(NamedTuple):
    """What keeps Pending pods waiting besides room, as far as it is known."""

    gangs: GangStates
    queue: QueueStates


async def _told(kube: Kube, asked: Extender | None, found: Listed) -> _Told:
    return _Told(await _gangs(kube, asked, found), await _quotas(asked, found))


async def _quotas(asked: Extender | None, found: Listed) -> QueueStates:
    """Return the quotas of the namespaces, if an extender knows them and a sentence needs them."""
    if asked is None or not found.complete or all(pod.node for pod in found.pods or ()):
        return NO_QUEUE
    try:
        body = await asked.get(f"{EXTENDER_PREFIX}/quota", seconds=REACH_SECONDS)
        return ReportedQuotas(asked.decoded(body, QuotaList))
    except ApiError:
        return NO_QUEUE  # the reservations are not known either, or it is an earlier version


async def _gangs(kube: Kube, asked: Extender | None, found: Listed) -> GangStates:
    """Return the gangs of the listed pods, if any belongs to one and its sentence is computed."""
    pods = [pod for pod in found.pods or () if key_of(pod) is not None]
    if not found.complete or all(pod.node for pod in pods):
        return NO_GANGS
    if asked is not None:
        try:
            body = await asked.get(f"{EXTENDER_PREFIX}/gangs", seconds=REACH_SECONDS)
            return ReportedGangs(pods, asked.decoded(body, GangList).gangs)
        except ApiError:
            pass  # the reservations are not known either, or it is an earlier version
    world = ListedCluster(found.nodes or (), found.pods or ())
    return (await gangs_of(kube, pods, world.unit_mib, world=world)).states


async def _overview(
    kube: Kube, asked: Extender | None, scope: Scope, reported: list[NodeView] | None, why: str
) -> Overview:
    try:
        found = await listed(kube, scope)
    except Lacking as err:
        if reported is None:
            raise
        found = Listed(None, None, missing=(str(err),))
    if reported is not None and found.nodes is None:
        lacks = "you may list neither nodes nor all pods" if found.pods_of else found.missing[0]
        text = f"only what the extender reports is shown: {lacks}"
        return _existing(summary.of_extender(reported, [text], scope), scope)
    told = await _told(kube, asked, found)
    return _combined(_hinted(found, asked, scope), told, scope, reported, why)


def _hinted(found: Listed, asked: Extender | None, scope: Scope) -> Listed:
    """Say what is not shown to a user with rights in one namespace, and what helps."""
    if scope.node or found.nodes is not None or not found.pods_of:
        return found
    page = f": `gpushare page -n {found.pods_of}` shows what is free."
    hint = page if asked is not None else f". {ASK_FOR_SERVER}"
    hidden = f"Nodes, free GPU memory and pods of other namespaces are not shown{hint}"
    return replace(found, missing=(hidden, *found.missing))


def _combined(
    found: Listed, told: _Told, scope: Scope, reported: list[NodeView] | None, why: str
) -> Overview:
    missing = []
    is_limited = found.nodes is None and found.pods_of
    if reported is None and not scope.namespace and not is_limited:
        missing.append(f"reservations are not shown: {why}")
    if scope.node and found.nodes == []:
        raise _no_node(scope.node)
    lists = summary.of_lists(
        found, reported, scope, not_shown=missing, gangs=told.gangs, queue=told.queue
    )
    return _existing(lists, scope)


def _existing(found: Overview, scope: Scope) -> Overview:
    """Return it unless it has nothing of the one node that is asked for, and all are known."""
    is_known = found.complete or found.unit_mib is not None
    if is_known and scope.node and not scope.namespace and not found.nodes and not found.pods:
        raise _no_node(scope.node)
    return found


def _no_node(name: str) -> No:
    return No(f"node {name} does not exist, or does not share GPUs by memory")


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
            write(printable_json(found) + b"\n")
        elif self._output in {"json", "yaml"}:
            if self._again and self._output == "yaml":
                say("---")
            show_document(found, self._output)
        elif self._live is None:
            nodes, sums = self._lines(found)
            show([*nodes, *sums], self._console)
        else:
            self._update(self._live, found)

    async def keep_ages(self) -> None:
        """Show the same again from time to time, because Pending pods get older."""
        while self._live is not None:
            await asyncio.sleep(AGES_SECONDS)
            if self._shown is not None and self._shown.waiting:
                self._update(self._live, self._shown)

    def _update(self, live: Live, found: Overview) -> None:
        rows = map(printable_line, fitted(*self._lines(found), self._console.height))
        live.update(Text("\n", no_wrap=True, overflow="ellipsis").join(rows), refresh=True)

    def _lines(self, found: Overview) -> tuple[list[Text], list[Text]]:
        """Return the lines about each node, and those about all of them."""
        columns = self._console.width if self._console.is_terminal else None
        wide, now = self._output == "wide", dt.datetime.now(dt.UTC)
        nodes = draw(found, now, pods=self._details, wide=wide, columns=columns)
        return list(nodes), list(below(found, now, whole=self._details))
