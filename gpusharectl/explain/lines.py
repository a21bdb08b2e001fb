"""Format why a pod is Pending, or where it is, for a terminal (pure)."""

import datetime as dt
from collections.abc import Iterator
from typing import Final

import msgspec
from rich.text import Text

from gpushare.answers.explain import CardView, Holder, NodeView, PodView
from gpushare.answers.what_if import Answer
from gpushare.placement import reasons
from gpushare.text.counted import counted
from gpusharectl.what_if import lines as what_if

# A node's reason as the reason of one GPU.
_OF_ONE: Final = {
    reasons.NO_ROOM.text: "too little free",
    reasons.TOO_LARGE.text: "too small",
    reasons.CORDONED.text: "cordoned",
    reasons.UNHEALTHY.text: "unhealthy",
    reasons.WRONG_MODEL.text: "not a model in card-models",
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
    Pending pod. ``events`` are gpushare's. ``not_shown`` says what is missing, and why.
    """

    pod: PodView
    from_extender: bool
    is_judged: bool
    running: Running | None
    outlook: Answer | None
    events: list[str]
    not_shown: list[str]


def draw(found: Explained, now: dt.datetime) -> Iterator[Text]:
    """Yield the answer, then its grounds; ``now`` is for the deadlines of terminating pods."""
    pod = found.pod
    headline = _headline(found)
    yield headline
    if pod.asks is not None:
        asks = pod.asks
        what = f"{asks.units} on one GPU"
        if asks.cards > 1:
            what = f"{asks.units} on {asks.cards} GPUs of one node, {asks.units_per_card} on each"
        yield Text(f"it requests {what}; its priority is {pod.priority}")
    yield from _bound(found)
    yield from _messages(found, headline.plain)
    if found.is_judged and pod.state not in {"bound", "refused"}:
        yield from _nodes(pod, now)
    if found.outlook is not None:
        yield from _helps(found.outlook)
    for text in found.not_shown:
        yield Text(text, style="dim")


def _headline(found: Explained) -> Text:
    pod = found.pod
    line = Text(f"{pod.namespace}/{pod.name} ", style="bold")
    if pod.state == "waiting" and not found.from_extender:
        return line.append("is Pending", style="bold yellow")
    if pod.state == "bound":
        return line.append(f"is {pod.says}", style="not bold green")
    words = {"refused": "fits on no node", "waiting": "is Pending"}
    line.append(words.get(pod.state, f"is {pod.state}"), style="bold yellow")
    return line.append(f": {pod.says}", style="not bold")


def _messages(found: Explained, shown: str) -> Iterator[Text]:
    """Yield kube-scheduler's and gpushare's messages that are not ``shown`` already."""
    pod = found.pod
    condition, asked = pod.scheduled, pod.asked
    if condition is not None and condition.message not in shown:
        yield Text(f"PodScheduled is {condition.status} ({condition.reason}): {condition.message}")
    if pod.nominated_node:
        yield Text(f"kube-scheduler makes room for it on {pod.nominated_node}")
    if asked is not None and asked.reasons:
        yield Text(
            f"kube-scheduler last asked {asked.seconds_ago:.0f} s ago; no node has fit for "
            f"{asked.waiting_seconds:.0f} s"
        )
    for text in found.events:
        if text.partition(": ")[2] not in shown:
            yield Text(text)


def _bound(found: Explained) -> Iterator[Text]:
    for place in found.pod.places:
        if place.certain and place.uuids:
            uuids = ", ".join(place.uuids)
            named = f"{what_if.gpus(place.cards)} ({uuids})" if place.cards else uuids
            yield Text(f"decided: {named} of {place.node}")
    running = found.running
    if running is None:
        return
    if not running.cards:
        yield Text("the node's plugin has not reported yet that it runs")
    elif running.agrees:
        yield Text(f"it runs there: the node's plugin reports {', '.join(running.cards)}")
    else:
        text = f"running-on has {', '.join(running.cards)}, which was not decided: see"
        yield Text(f"{text} GpushareDecisionChanged in docs/troubleshooting.md", style="red")


def _nodes(pod: PodView, now: dt.datetime) -> Iterator[Text]:
    total = counted(len(pod.nodes) + pod.nodes_left_out, "node")
    yield Text(f"the GPUs of {pod.fitting_nodes} of {total} with shared GPUs have room:")
    yield from what_if.reasons(pod.reasons)
    if pod.forbidden:
        yield Text("kube-scheduler's own rules exclude:")
        yield from what_if.reasons(pod.forbidden)
    for node in pod.nodes:
        yield from _node(node, now)
    if pod.nodes_left_out:
        yield Text(f"and {counted(pod.nodes_left_out, 'more node')} (--nodes)", style="dim")


def _node(node: NodeView, now: dt.datetime) -> Iterator[Text]:
    line = Text(node.name, style="bold")
    if node.forbidden:
        yield line.append(f"  excluded: {'; '.join(node.forbidden)}", style="not bold")
    elif node.fits:
        yield line.append("  fits", style="not bold green")
    else:
        yield line.append(f"  {node.why}", style="not bold")
    if node.forbidden and node.fits:
        return
    digits = max((len(str(card.units)) for card in node.cards), default=1)
    for card in node.cards:
        yield from _card(card, digits, now)
    for holder in node.unplaced:
        yield _holder(holder, now).append(", on an unknown GPU: counted on each")


def _card(card: CardView, digits: int, now: dt.datetime) -> Iterator[Text]:
    line = Text(f"  {card.index}  {card.free:>{digits}} of {card.units} free, needs {card.needed}")
    if card.reserved:
        line.append(f", {card.reserved} reserved")
    if card.claimed:
        line.append(f", {card.claimed} promised to other pods")
    if card.fits:
        yield line.append(": fits", style="green")
        return
    yield line.append(f": {_OF_ONE.get(card.why, card.why)}")
    for holder in card.pods:
        yield _holder(holder, now)


def _holder(holder: Holder, now: dt.datetime) -> Text:
    name = f"{holder.namespace}/{holder.name}" if holder.name else "a pod in another namespace"
    line = Text(f"     {holder.units} used by {name}, priority {holder.priority}")
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
        where = ", ".join(f"{each.node} {what_if.gpus(each.cards)}" for each in answer.places)
        yield Text(f"it would fit now: {where}")
        yield from what_if.unchecked(answer)
    else:
        yield from what_if.victims(answer.would_have_to_go)
