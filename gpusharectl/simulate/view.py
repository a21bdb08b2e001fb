"""What a simulation shows: the JSON of ``-o json``, and what every picture is drawn from."""

from typing import Final

import msgspec

VERSION: Final = 1


class _View(msgspec.Struct, rename="camel", frozen=True):
    pass


class Share(_View, frozen=True):
    """``units`` that a pod has of this one card."""

    namespace: str
    name: str
    units: int


class Unplaced(_View, frozen=True):
    """A bound pod whose cards cannot be told: its units are taken from every card of the node."""

    namespace: str
    name: str
    units: int
    why: str


class Card(_View, frozen=True):
    """``free`` is what a pod can get: also with free units a card may take nothing new."""

    index: int
    uuid: str
    model: str
    health: str
    cordoned: bool
    units: int
    used: int
    free: int
    pods: tuple[Share, ...]


class Node(_View, frozen=True):
    """``closed``: why it takes no new pods, whatever its cards have free; empty where it does.

    ``touched``: something happened here in this step.
    """

    name: str
    units: int
    used: int
    closed: str
    touched: bool
    cards: tuple[Card, ...]
    unplaced: tuple[Unplaced, ...]


class Happened(_View, frozen=True):
    """``what``: placed, waits, refused, bound, deleted, gave-up, node.

    ``bound`` is a pod that the file says is on a node; ``gave-up`` one that was deleted while it
    waited. ``units`` are of each of ``cards`` (indexes). ``waited`` is in seconds.
    """

    what: str
    namespace: str = ""
    name: str = ""
    node: str = ""
    cards: tuple[int, ...] = ()
    units: int = 0
    waited: int = 0
    text: str = ""


class CardWhy(_View, frozen=True):
    """``why`` is empty where the pod's part would fit on the card."""

    index: int
    free: int
    why: str


class NodeWhy(_View, frozen=True):
    """``why`` of kube-scheduler's own rules or of the extender's filter."""

    name: str
    why: str
    cards: tuple[CardWhy, ...]


class WaitingPod(_View, frozen=True):
    namespace: str
    name: str
    since: int


class Waiting(_View, frozen=True):
    """Pods that ask for the same and wait for the same reasons.

    ``says`` is set where no node could ever have them. ``reasons`` to number of nodes; ``nodes``
    are those that come nearest, ``nodes_left_out`` how many more there are.
    """

    pods: tuple[WaitingPod, ...]
    priority: int
    units: int
    cards: int
    units_per_card: int
    says: str
    reasons: dict[str, int]
    nodes: tuple[NodeWhy, ...]
    nodes_left_out: int


class Step(_View, frozen=True):
    """The cluster after all that happened at ``at`` (seconds).

    ``fragmentation``: the share of free units that lies in pieces too small for pods like those
    that run, 0 to 1.
    """

    number: int
    at: int
    units: int
    used: int
    largest_free: int
    fragmentation: float
    happened: tuple[Happened, ...]
    nodes: tuple[Node, ...]
    waiting: tuple[Waiting, ...]

    @property
    def pods_waiting(self) -> int:
        return sum(len(group.pods) for group in self.waiting)


class Head(_View, frozen=True):
    """What holds for all steps. ``not_simulated`` is what a real cluster also decides by."""

    version: int
    unit_mib: int = msgspec.field(name="unitMiB")
    node_policy: str
    card_policy: str
    not_simulated: tuple[str, ...]
    ignored: tuple[str, ...]


def nearest(step: Step, most: int) -> tuple[Node, ...]:
    """At most so many nodes, those first where something happened; in the order of their names."""
    if len(step.nodes) <= most:
        return step.nodes
    chosen = sorted(step.nodes, key=lambda node: (not node.touched, not node.used, node.name))
    return tuple(sorted(chosen[:most], key=lambda node: node.name))


def said(happened: Happened) -> str:
    """One thing that happened, in a line."""
    cards = ", ".join(map(str, happened.cards))
    where = f"{happened.node}, card{'s' * (len(happened.cards) > 1)} {cards}"
    amount = f"{happened.units}{' each' * (len(happened.cards) > 1)}"
    after = f" after {clock(happened.waited)}" if happened.waited else ""
    name = (
        happened.name
        if happened.namespace in {"", "default"}
        else f"{happened.namespace}/{happened.name}"
    )
    match happened.what:
        case "placed":
            return f"+ {name} to {where} ({amount}){after}"
        case "bound":
            text = f": {happened.text}" if happened.text else ""
            return f"+ {name} is on {where if happened.cards else happened.node} ({amount}){text}"
        case "deleted":
            return f"- {name} is gone from {where if happened.cards else happened.node} ({amount})"
        case "gave-up":
            return f"- {name} is gone, having waited{after.removeprefix(' after')}"
        case "node":
            return f"* node {happened.node} {happened.text}"
        case "refused":
            return f"! {name} cannot run: {happened.text}"
        case _:
            return f"? {name} waits"


def asks(group: Waiting) -> str:
    """What pods that wait ask for, in words."""
    if group.cards > 1:
        return f"{group.units_per_card} on each of {group.cards} cards of one node"
    return f"{group.units} on one card"


def named(group: Waiting, most: int = 3) -> str:
    """The names of pods that wait for the same."""
    names = [
        pod.name if pod.namespace == "default" else f"{pod.namespace}/{pod.name}"
        for pod in group.pods
    ]
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def clock(seconds: int) -> str:
    """A time as it is written in a file: 90 is 1m30s."""
    hours, rest = divmod(seconds, 3600)
    minutes, rest = divmod(rest, 60)
    parts = ((hours, "h"), (minutes, "m"), (rest, "s"))
    return "".join(f"{number}{letter}" for number, letter in parts if number) or "0s"


def unit_name(unit_mib: int) -> str:
    """What a unit is, as ``--memory-unit`` has it."""
    if unit_mib % 1024 == 0:
        return f"{unit_mib // 1024} GiB"
    return f"{unit_mib} MiB"
