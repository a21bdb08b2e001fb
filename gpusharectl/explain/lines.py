"""Format why a pod is Pending, or where it is, for a terminal (pure)."""

import datetime as dt
from collections.abc import Iterator
from typing import Final

import msgspec
from rich.text import Text

from gpushare.answers.explain import CardView, Holder, NodeView, PodView
from gpushare.answers.pending.phrases import gpus
from gpushare.answers.what_if import Answer
from gpushare.placement import reasons
from gpushare.text.amounts import Amounts, to_write
from gpushare.text.counted import counted
from gpushare.text.manual import manual
from gpusharectl.reach.pod_events import WAITING, Said
from gpusharectl.reach.rights import ASK_FOR_SERVER
from gpusharectl.what_if import lines as what_if

# For a user with rights in one namespace, to whom a list of missing rights says nothing.
HIDDEN: Final = f"Nodes and free GPU memory are not shown. {ASK_FOR_SERVER}"
# A node's reason as the reason of one GPU.
_OF_ONE: Final = {
    reasons.NO_ROOM.text: "too little free",
    reasons.TOO_LARGE.text: "too small",
    reasons.CORDONED.text: "cordoned",
    reasons.UNHEALTHY.text: "unhealthy",
    reasons.WRONG_MODEL.text: "not a model in card-models",
    reasons.NOT_LIMITED.text: "the driver limits no memory",
    reasons.UNWANTED.text: "excluded by card-uuids-only or card-uuids-not",
    reasons.WRONG_UNIT.text: "counts in another unit than the cluster",
}


class Running(msgspec.Struct):
    """Where the node's plugin reports the pod; ``cards`` are UUIDs, empty before it starts."""

    cards: list[str]
    agrees: bool


class Explained(msgspec.Struct, rename="camel"):
    """All that is shown about a pod.

    ``pod`` is the extender's explain; computed from the API server's lists if not
    ``from_extender``, and without nodes if not ``is_judged``. ``outlook`` is the what-if of a
    Pending pod. ``events`` are gpushare's. ``not_shown`` says what is missing, and why;
    ``lacks_rights``: the caller may see neither nodes nor an extender. ``said_at`` is the time of
    the Event that the pod's sentence is from; empty if the sentence is as of now.
    """

    pod: PodView
    from_extender: bool
    is_judged: bool
    running: Running | None
    outlook: Answer | None
    events: list[str]
    not_shown: list[str]
    lacks_rights: bool = False
    said_at: str = ""


def draw(found: Explained, now: dt.datetime, *, verbose: bool) -> Iterator[Text]:
    """Yield the sentence, then what it leaves out; ``verbose`` adds every shown node and GPU.

    ``now`` is for the deadlines of terminating pods and the ages of Events.
    """
    pod = found.pod
    headline = _headline(found, now)
    yield headline
    if pod.queue is not None:
        yield Text(pod.queue.text)
    yield from _bound(found)
    yield from _messages(found, headline.plain, verbose=verbose)
    if found.is_judged and pod.state not in {"bound", "refused"}:
        if verbose:
            yield from _details(found, now)
        elif pod.nodes:
            yield Text("for each node and GPU, add --verbose", style="dim")
    if found.lacks_rights and not verbose:
        yield Text(HIDDEN, style="dim")
        return
    for text in found.not_shown:
        yield Text(text, style="dim")


def _headline(found: Explained, now: dt.datetime) -> Text:
    pod = found.pod
    line = Text(f"{pod.namespace}/{pod.name} ", style="bold")
    if pod.state == "bound":
        return line.append(f"is {pod.says}", style="not bold green")
    line.append("is Pending", style="bold yellow")
    return line.append(f": {Said(pod.says, found.said_at).shown(now)}", style="not bold")


def _messages(found: Explained, shown: str, *, verbose: bool) -> Iterator[Text]:
    """Yield kube-scheduler's and gpushare's messages that are not ``shown`` already."""
    pod = found.pod
    condition, asked = pod.scheduled, pod.asked
    words = condition.message if condition is not None else ""
    if condition is not None and words not in shown and verbose:
        yield Text(f"PodScheduled is {condition.status} ({condition.reason}): {words}")
    if asked is not None and asked.reasons and verbose:
        yield Text(
            f"kube-scheduler last asked {asked.seconds_ago:.0f} s ago; no node has fit for "
            f"{asked.waiting_seconds:.0f} s"
        )
    was_tried = condition is not None and pod.state == "waiting"
    if found.from_extender and was_tried and asked is None and pod.fitting_nodes:
        yield Text("kube-scheduler has not asked this extender about it")
    for text in found.events:
        reason, _, message = text.partition(": ")
        if message not in shown and (verbose or reason != WAITING):
            yield Text(text)


def _bound(found: Explained) -> Iterator[Text]:
    for place in found.pod.places:
        if place.certain and place.uuids:
            uuids = ", ".join(place.uuids)
            named = f"{gpus(place.cards)} ({uuids})" if place.cards else uuids
            yield Text(f"decided: {named} of {place.node}")
            if place.limit:
                yield Text(f"of containers that start on {place.node} now, {place.limit}")
    gang, running = found.pod.gang, found.running
    if gang is not None and found.pod.state == "bound":
        yield Text(f"gang {gang.name}: {gang.text}")
    if running is None:
        return
    if not running.cards:
        yield Text("the node's plugin has not reported yet that it runs")
    elif running.agrees:
        yield Text(f"it runs there: the node's plugin reports {', '.join(running.cards)}")
    else:
        text = f"running-on has {', '.join(running.cards)}, which was not decided: see"
        yield Text(f"{text} {manual('troubleshooting.md#gpusharedecisionchanged')}", style="red")


def _details(found: Explained, now: dt.datetime) -> Iterator[Text]:
    pod, amounts = found.pod, Amounts(found.pod.unit_mib)
    if pod.asks is not None:
        asks = pod.asks
        what = f"{amounts.needed(asks.units)} on one GPU"
        if asks.cards > 1:
            each = f"{amounts.needed(asks.units_per_card)} on each"
            what = f"{amounts.needed(asks.units)} on {asks.cards} GPUs of one node, {each}"
        yield Text(f"it requests {what} ({to_write(asks.units)}); its priority is {pod.priority}")
    number = counted(len(pod.nodes) + pod.nodes_left_out, "node")
    yield Text(f"nodes with room on their GPUs: {pod.fitting_nodes} of {number}")
    yield from what_if.reasons(pod.reasons)
    if pod.forbidden:
        yield Text("kube-scheduler's own rules exclude:")
        yield from what_if.reasons(pod.forbidden)
    for node in pod.nodes:
        yield from _node(node, amounts, now)
    if pod.nodes_left_out:
        yield Text(f"and {counted(pod.nodes_left_out, 'more node')} (--nodes)", style="dim")
    if found.outlook is not None:
        yield from _helps(found.outlook)


def _node(node: NodeView, amounts: Amounts, now: dt.datetime) -> Iterator[Text]:
    line = Text(node.name, style="bold")
    if node.forbidden:
        yield line.append(f"  excluded: {'; '.join(node.forbidden)}", style="not bold")
    elif node.fits:
        yield line.append("  fits", style="not bold green")
    else:
        yield line.append(f"  {node.why}", style="not bold")
    if node.forbidden and node.fits:
        return
    if node.why == reasons.WRONG_UNIT.text:
        amounts = Amounts(0)
    for card in node.cards:
        yield from _card(card, amounts, now)
    for holder in node.unplaced:
        yield _holder(holder, amounts, now).append(", on an unknown GPU: counted on each")


def _card(card: CardView, amounts: Amounts, now: dt.datetime) -> Iterator[Text]:
    free, total = amounts.free(card.free), amounts.free(card.units)
    line = Text(f"  {card.index}  {free} of {total} free, {amounts.needed(card.needed)} requested")
    if card.reserved:
        line.append(f", {amounts.needed(card.reserved)} reserved")
    if card.claimed:
        line.append(f", {amounts.needed(card.claimed)} claimed for other pods")
    if card.fits:
        yield line.append(": fits", style="green")
        return
    yield line.append(f": {_OF_ONE.get(card.why, card.why)}")
    for holder in card.pods:
        yield _holder(holder, amounts, now)


def _holder(holder: Holder, amounts: Amounts, now: dt.datetime) -> Text:
    name = f"{holder.namespace}/{holder.name}" if holder.name else "a pod in another namespace"
    used = amounts.needed(holder.units)
    line = Text(f"     {used} used by {name}, priority {holder.priority}")
    if holder.terminating:
        line.append(f", terminating{_until(holder.until, now)}", style="yellow")
    return line


def _until(until: str, now: dt.datetime) -> str:
    try:
        left = (dt.datetime.fromisoformat(until) - now).total_seconds()
    except (ValueError, TypeError):
        return ""
    if left > 0:
        return f": its containers are killed in {left:.0f} s at the latest"
    return f": its containers should have been killed {-left:.0f} s ago"


def _helps(answer: Answer) -> Iterator[Text]:
    if answer.fits:
        where = ", ".join(f"{each.node} {gpus(each.cards)}" for each in answer.places)
        yield Text(f"by itself it would fit now: {where}")
        yield from what_if.unchecked(answer.not_checked)
    else:
        yield from what_if.victims(answer)
