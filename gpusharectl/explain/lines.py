"""Why a pod waits or where it is, as lines for a terminal (pure)."""

import datetime as dt
from collections.abc import Iterator
from typing import Final

import msgspec
from rich.text import Text

from gpushare.answers.explain import CardView, Holder, NodeView, PodView
from gpushare.answers.what_if import Answer
from gpushare.placement import reasons
from gpushare.text.counted import counted
from gpusharectl.what_if import lines as outlook

# What a node's reason means where it is said of one GPU.
_OF_ONE: Final = {
    reasons.NO_ROOM.text: "too little free",
    reasons.TOO_LARGE.text: "too small",
    reasons.CORDONED.text: "cordoned",
    reasons.UNHEALTHY.text: "unhealthy",
    reasons.WRONG_MODEL.text: "not of a model in card-models",
    reasons.UNWANTED.text: "kept out by card-uuids-only or card-uuids-not",
    reasons.WRONG_UNIT.text: "counts in another unit than the cluster",
}


class Running(msgspec.Struct):
    """Where the node's plugin says that a pod runs: ``cards`` are UUIDs, none before it starts."""

    cards: list[str]
    agrees: bool


class Explained(msgspec.Struct, rename="camel"):
    """All that is said of a pod.

    ``pod`` is the extender's explain; by the same code from the API server's lists where
    ``from_extender`` is false, and without nodes where ``is_judged`` is. ``outlook`` is what-if
    of a pod that waits. ``events`` are gpushare's. ``not_shown`` says what is missing, and why.
    """

    pod: PodView
    from_extender: bool
    is_judged: bool
    running: Running | None
    outlook: Answer | None
    events: list[str]
    not_shown: list[str]


def draw(found: Explained, now: dt.datetime) -> Iterator[Text]:
    """The answer first, then what it comes from; ``now`` is for how long somebody still holds."""
    pod = found.pod
    headline = _headline(found)
    yield headline
    if pod.asks is not None:
        asks = pod.asks
        what = f"{asks.units} of one GPU"
        if asks.cards > 1:
            what = f"{asks.units} over {asks.cards} GPUs of one node, {asks.units_per_card} of each"
        yield Text(f"it asks for {what}; its priority is {pod.priority}")
    yield from _bound(found)
    yield from _told(found, headline.plain)
    if found.is_judged and pod.state not in {"bound", "refused"}:
        yield from _judged(pod, now)
    if found.outlook is not None:
        yield from _helps(found.outlook)
    for text in found.not_shown:
        yield Text(text, style="dim")


def _headline(found: Explained) -> Text:
    pod = found.pod
    line = Text(f"{pod.namespace}/{pod.name} ", style="bold")
    if pod.state == "waiting" and not found.from_extender:
        return line.append("waits", style="bold yellow")
    if pod.state == "bound":
        return line.append(f"is {pod.says}", style="not bold green")
    words = {"refused": "fits nowhere", "waiting": "waits"}
    line.append(words.get(pod.state, f"is {pod.state}"), style="bold yellow")
    return line.append(f": {pod.says}", style="not bold")


def _told(found: Explained, said: str) -> Iterator[Text]:
    """What kube-scheduler and gpushare have told the pod, but for what was ``said`` already."""
    pod = found.pod
    condition, asked = pod.scheduled, pod.asked
    if condition is not None and condition.message not in said:
        told = f"PodScheduled is {condition.status} ({condition.reason}): {condition.message}"
        yield Text(told)
    if pod.nominated_node:
        yield Text(f"kube-scheduler makes room for it on {pod.nominated_node}")
    if asked is not None and asked.reasons:
        yield Text(
            f"kube-scheduler last asked {asked.seconds_ago:.0f} s ago; no node would do since "
            f"{asked.waiting_seconds:.0f} s"
        )
    for text in found.events:
        if text.partition(": ")[2] not in said:
            yield Text(text)


def _bound(found: Explained) -> Iterator[Text]:
    for place in found.pod.places:
        if place.certain and place.uuids:
            uuids = ", ".join(place.uuids)
            named = f"{outlook.gpus(place.cards)} ({uuids})" if place.cards else uuids
            yield Text(f"decided: {named} of {place.node}")
    running = found.running
    if running is None:
        return
    if not running.cards:
        yield Text("the node's plugin has not said yet that it runs")
    elif running.agrees:
        yield Text(f"it runs there: the node's plugin says {', '.join(running.cards)}")
    else:
        text = f"running-on says {', '.join(running.cards)}, which was not decided: see"
        yield Text(f"{text} GpushareDecisionChanged in docs/troubleshooting.md", style="red")


def _judged(pod: PodView, now: dt.datetime) -> Iterator[Text]:
    total = len(pod.nodes) + pod.nodes_left_out
    nodes = counted(total, "node")
    yield Text(f"of {nodes} with shared GPUs, by their GPUs {pod.fitting_nodes} would do:")
    yield from outlook.counted(pod.reasons)
    if pod.forbidden:
        yield Text("kube-scheduler's own rules keep it off:")
        yield from outlook.counted(pod.forbidden)
    for node in pod.nodes:
        yield from _node(node, now)
    if pod.nodes_left_out:
        yield Text(f"and {counted(pod.nodes_left_out, 'more node')} (--nodes)", style="dim")


def _node(node: NodeView, now: dt.datetime) -> Iterator[Text]:
    line = Text(node.name, style="bold")
    if node.forbidden:
        yield line.append(f"  kept off: {'; '.join(node.forbidden)}", style="not bold")
    elif node.fits:
        yield line.append("  would do", style="not bold green")
    else:
        yield line.append(f"  {node.why}", style="not bold")
    if node.forbidden and node.fits:
        return
    digits = max((len(str(card.units)) for card in node.cards), default=1)
    for card in node.cards:
        yield from _card(card, digits, now)
    for holder in node.unplaced:
        yield _holder(holder, now).append(", on which GPU is not known: counted on each")


def _card(card: CardView, digits: int, now: dt.datetime) -> Iterator[Text]:
    line = Text(f"  {card.index}  {card.free:>{digits}} of {card.units} free, needs {card.needed}")
    if card.reserved:
        line.append(f", {card.reserved} reserved")
    if card.claimed:
        line.append(f", {card.claimed} promised to others")
    if card.fits:
        yield line.append(": would do", style="green")
        return
    yield line.append(f": {_OF_ONE.get(card.why, card.why)}")
    for holder in card.pods:
        yield _holder(holder, now)


def _holder(holder: Holder, now: dt.datetime) -> Text:
    name = f"{holder.namespace}/{holder.name}" if holder.name else "a pod of another namespace"
    line = Text(f"     {holder.units} held by {name}, priority {holder.priority}")
    if holder.terminating:
        line.append(f", about to end{_until(holder.until, now)}", style="yellow")
    return line


def _until(until: str, now: dt.datetime) -> str:
    try:
        left = (dt.datetime.fromisoformat(until) - now).total_seconds()
    except (ValueError, TypeError):
        return ""
    if left > 0:
        return f": its containers are killed in {left:.0f} s at the latest"
    return f": its containers were to be killed {-left:.0f} s ago"


def _helps(answer: Answer) -> Iterator[Text]:
    if answer.fits:
        where = ", ".join(f"{each.node} {outlook.gpus(each.cards)}" for each in answer.places)
        yield Text(f"it would fit now: {where}")
        yield from outlook.unchecked(answer)
    else:
        yield from outlook.victims(answer.would_have_to_go)
