"""Format what follows the nodes: sums, use by namespace, Pending pods (pure)."""

import datetime as dt
from collections.abc import Iterator
from typing import Final

from rich.text import Text

from gpushare.answers import gang_rows
from gpushare.answers.inspect import Device
from gpushare.text.amounts import Amounts, free_gib, needed_gib, used_gib
from gpushare.text.counted import counted
from gpusharectl.inspect.lines import CLAIMED, OTHERS, RESERVED
from gpusharectl.inspect.namespaces import NamespaceUse
from gpusharectl.inspect.summary import Overview, Summary
from gpusharectl.inspect.waiting import WaitingPod, age
from gpusharectl.reach.pod_events import Said

NAMESPACES_SHOWN: Final = 10
WAITING_SHOWN: Final = 20


def below(overview: Overview, now: dt.datetime, *, whole: bool = False) -> Iterator[Text]:
    """Yield the lines about all nodes together; ``whole`` names every namespace and Pending pod."""
    for place in overview.pods:
        where = ", ".join(place.cards) or "an unknown GPU"
        used = Amounts(overview.unit_mib or 0).needed(place.units)
        yield Text(f"{place.namespace}/{place.name}  {used} of {where} on {place.node}")
    if overview.namespace:
        yield from _namespace(overview)
    else:
        yield from _cluster(overview)
        yield from _namespaces(overview, None if whole else NAMESPACES_SHOWN)
    yield from _waiting(overview, now, None if whole else WAITING_SHOWN)
    if overview.namespace and overview.nodes and overview.complete:
        yield Text(f"{OTHERS[0]} used by other namespaces, or reserved", style="dim")
    else:
        yield from _kept([card for node in overview.nodes for card in node.devices])
    for text in overview.not_shown:
        yield Text(text, style="dim")


def _kept(cards: list[Device]) -> Iterator[Text]:
    """Explain the signs for what is reserved or claimed."""
    if any(card.reserved for card in cards):
        yield Text(f"{RESERVED[0]} reserved for pods that are being bound", style="dim")
    if any(card.claimed for card in cards):
        text = "claimed for pods that wait until others have ended"
        yield Text(f"{CLAIMED[0]} {text}", style="dim")


def _cluster(overview: Overview) -> Iterator[Text]:
    """Yield lines that fit a terminal of 80 columns."""
    found, unit = overview.summary, overview.unit_mib or 1
    if found is None:
        return
    if not overview.nodes:
        yield Text("no node shares GPUs by memory: `gpushare doctor` says what is missing")
        return
    total, used = found.total * unit, found.used * unit
    line = Text(
        f"{_places(found)}: {free_gib(total)}, {used_gib(used, total)} used, "
        f"{free_gib(found.free * unit)} free"
    )
    if found.reserved:
        line.append(f", {needed_gib(found.reserved * unit)} reserved")
    if found.claimed:
        line.append(f", {needed_gib(found.claimed * unit)} claimed")
    yield line
    if (best := found.largest_free) is not None:
        yield Text(
            f"the most free on one GPU is {free_gib(best.units * unit)} "
            f"({best.node}, GPU {best.card})"
        )


def _places(found: Summary) -> str:
    return f"{counted(found.nodes, 'node')}, {counted(found.cards, 'GPU')}"


def _namespace(overview: Overview) -> Iterator[Text]:
    if not overview.namespaces:
        return
    [found], unit = overview.namespaces, overview.unit_mib or 1
    if not found.pods:
        yield Text(f"no pod of namespace {found.namespace} uses GPU memory")
        return
    cards = sum(len(node.devices) for node in overview.nodes)
    yield Text(
        f"namespace {found.namespace}: {needed_gib(found.used * unit)} used by "
        f"{counted(found.pods, 'pod')} on {counted(cards, 'GPU')} of "
        f"{counted(len(overview.nodes), 'node')}, {_percent(found.share)} of the total"
    )


def _namespaces(overview: Overview, most: int | None) -> Iterator[Text]:
    found, unit = overview.namespaces or [], overview.unit_mib or 1
    if not found:
        return
    rows = [("NAMESPACE", "USED", "SHARE", "PODS", "PENDING")]
    total = overview.summary.total if overview.summary is not None else 0
    rows += [_row(each, unit, total) for each in found[:most]]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        name, *others = row
        cells = [f"{cell:>{width}}" for cell, width in zip(others, widths[1:], strict=True)]
        yield Text("  ".join([f"{name:<{widths[0]}}", *cells]).rstrip())
    if len(rows) - 1 < len(found):
        yield Text(f"and {counted(len(found) - len(rows) + 1, 'more namespace')} (-d)")


def _row(found: NamespaceUse, unit: int, total: int) -> tuple[str, str, str, str, str]:
    waiting = "" if found.waiting is None else str(found.waiting)
    used = used_gib(found.used * unit, total * unit)
    return found.namespace, used, _percent(found.share), str(found.pods), waiting


def _percent(share: float) -> str:
    return "<1%" if 0 < share < 0.01 else f"{share:.0%}"  # noqa: PLR2004 - one percent


def _waiting(overview: Overview, now: dt.datetime, most: int | None) -> Iterator[Text]:
    """Yield a line for each Pending pod and each gang, the longest waiting first."""
    found = gang_rows.rows(overview.waiting or [])
    if not found:
        return
    yield Text(gang_rows.counts(found), style="yellow")
    shown = [(_subject(row), age(row[0].created, now)) for row in found[:most]]
    name, waits = (max(len(each[at]) for each in shown) for at in range(2))
    for row, cells in zip(found, shown, strict=False):
        yield Text(f"  {cells[0]:<{name}}  {cells[1]:>{waits}}  {_why(overview, row, now)}")
    if left := sum(map(len, found[len(shown) :])):
        yield Text(f"  and {left} more (-d)")


def _subject(row: list[WaitingPod]) -> str:
    first = row[0]
    if not first.gang:
        return f"{first.namespace}/{first.name}"
    return gang_rows.subject(f"{first.namespace}/{first.gang}", len(row))


def _why(overview: Overview, row: list[WaitingPod], now: dt.datetime) -> str:
    first = row[0]
    if not first.gang:
        return Said(first.why, first.said_at).shown(now)
    own = [(each.name, each.own) for each in row]
    return gang_rows.text(overview.gangs.get(f"{first.namespace}/{first.gang}", ""), own)
