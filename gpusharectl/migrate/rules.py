"""What stands in the way of coming over from the ecosystem's older extender and plugin (pure).

The older plugin knows two units, GiB and MiB, and offers as much of each card as the first card
has, rounded down; it keeps nothing back for the driver. It writes on a pod that it has its card
only where it has told the pod from others of the same size, and then that card is the one of IDX.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from gpushare.annotations import inventory
from gpushare.annotations.pod_annotations import asks_for_share, containers_of, share_of
from gpushare.cards.model import Card, Inventory
from gpushare.contract import (
    ANNOTATION_ASSIGNED,
    ANNOTATION_CARD_UNITS,
    ANNOTATION_INVENTORY,
    ANNOTATION_RUNNING_ON,
    RESOURCE_COUNT,
    RESOURCE_MEMORY,
)
from gpushare.errors import RecordError, RequestError
from gpushare.objects.model import Node, Pod
from gpushare.objects.quantity import parse_units

LABEL_MEMORY: Final = "nvidia.com/gpu.memory"  # MiB of a card, by NVIDIA's feature discovery
UNITS_MIB: Final = {"GiB": 1024, "MiB": 1}
_LEAST_MIB: Final = 1024  # no card that is shared has less; none has as many GiB
_ANOTHER_UNIT: Final = 100  # times as large: rounding and reserves explain far less


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Something to be settled first; ``pod`` is empty where it is the node's."""

    why: str
    cure: str
    pod: str = ""


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a node is. ``unit`` is empty, and the amounts 0, where it cannot be told.

    ``plugin`` is ``older`` or ``gpushare``.
    """

    node: str
    plugin: str
    unit: str = ""
    cards: int = 0
    units_per_card: int = 0
    pods: int = 0
    obstacles: tuple[Obstacle, ...] = ()


@dataclass(frozen=True, slots=True)
class Migration:
    """``memory_unit`` and ``reserved`` are the flags with which our plugin has the same totals."""

    nodes: tuple[Standing, ...]
    obstacles: tuple[Obstacle, ...] = ()
    memory_unit: str = ""
    reserved: str = "none"
    steps: tuple[str, ...] = ()

    @property
    def is_free(self) -> bool:
        return not self.obstacles and not any(each.obstacles for each in self.nodes)


def migration(nodes: Iterable[Node], pods: Iterable[Pod]) -> Migration:
    """What a look at all nodes and all pods says."""
    on_node: dict[str, list[Pod]] = {}
    for pod in pods:
        if pod.node and asks_for_share(pod) and not pod.is_terminal:
            on_node.setdefault(pod.node, []).append(pod)
    sharing = [node for node in nodes if _shares(node)]
    standings = tuple(
        _standing(node, sorted(on_node.get(node.name, ()), key=lambda pod: pod.key))
        for node in sorted(sharing, key=lambda node: node.name)
    )
    units = {each.unit for each in standings if each.unit}
    obstacles = []
    if len(units) > 1:
        told = ", ".join(f"{each.node} counts in {each.unit}" for each in standings if each.unit)
        obstacles.append(
            Obstacle(
                f"one unit holds for a whole cluster, and these nodes have several: {told}",
                "drain the nodes of one unit, and start the older plugin there with the other",
            )
        )
    unit = next(iter(units)) if len(units) == 1 else ""
    return Migration(standings, tuple(obstacles), unit, steps=_steps(standings))


def _steps(standings: Sequence[Standing]) -> tuple[str, ...]:
    """What is to be done, in order: docs/migrate.md has the commands."""
    left = [each.node for each in standings if each.plugin == "older"]
    extender = (
        "the extender: take the older one away, apply daemonset/overlays/migrating, and start "
        "kube-scheduler with daemonset/scheduler/config.yaml"
    )
    return (
        "settle what stands in the way, if anything does",
        extender,
        f"the plugin, one node after the other; to come: {', '.join(left) or 'none'}",
        "ask again: every node must have come over, with nothing in the way",
        "the policies, last: apply your own kustomization, with --reserved=none",
    )


def _shares(node: Node) -> bool:
    return ANNOTATION_INVENTORY in node.annotations or str(
        node.capacity.get(RESOURCE_MEMORY, "0")
    ) not in {"0", ""}


def _standing(node: Node, pods: Sequence[Pod]) -> Standing:
    is_ours = ANNOTATION_INVENTORY in node.annotations
    plugin = "gpushare" if is_ours else "older"
    try:
        found = inventory.of_node(node, unit_mib=1)
    except RecordError as err:
        cure = "see `gpushare doctor`" if is_ours else "start the older plugin there again"
        return Standing(node.name, plugin, pods=len(pods), obstacles=(Obstacle(str(err), cure),))
    if found is None:
        text = f"the node has {RESOURCE_MEMORY} and no {RESOURCE_COUNT}: its cards cannot be told"
        why = Obstacle(text, "start the older plugin there again: it writes that at its start")
        return Standing(node.name, plugin, pods=len(pods), obstacles=(why,))
    largest = max((card.units for card in found.cards), default=0)
    if is_ours:
        unit = next((n for n, mib in UNITS_MIB.items() if mib == found.unit_mib), "")
        unit = unit or f"{found.unit_mib}MiB"
        obstacles = [*_of_pods(pods, found), *_overfull(pods, found)]
    else:
        unit = "MiB" if largest >= _LEAST_MIB else "GiB"
        untold = _of_pods(pods, found)
        told = {pod.key for pod in pods}.difference(each.pod for each in untold)
        obstacles = [*_of_totals(node, found, unit), *untold]
        obstacles += [e for pod in pods if pod.key in told for e in _of_older_pod(pod, largest)]
        obstacles += _overfull(pods, found)
    return Standing(node.name, plugin, unit, len(found.cards), largest, len(pods), tuple(obstacles))


def _of_totals(node: Node, found: Inventory, unit: str) -> list[Obstacle]:
    """What is wrong with the totals that the older plugin has put on its node."""
    total, count = parse_units(node.capacity[RESOURCE_MEMORY]), len(found.cards)
    each = total // count
    if total % count:
        return [
            Obstacle(
                f"{total} units are not {count} equal cards, as the older plugin offers them",
                "start the older plugin there again, and see that only one runs there",
            )
        ]
    written = node.labels.get(LABEL_MEMORY, "")
    mib = int(written) if written.isascii() and written.isdigit() and len(written) < 10 else 0  # noqa: PLR2004 - a PiB
    real = mib // UNITS_MIB[unit]
    if mib and real != each:
        return [
            Obstacle(
                f"it offers {each} {unit} of each card, and label {LABEL_MEMORY} says that a card "
                f"has {real}: our plugin counts each card by itself, so cards will change their "
                "size",
                f"let no card hold more than {min(real, each)} units when the node comes over",
            )
        ]
    return []


def _of_pods(pods: Iterable[Pod], found: Inventory) -> list[Obstacle]:
    obstacles = []
    for pod in pods:
        share = share_of(pod, found)
        if share is not None and share.is_unplaced:
            text = f"its card cannot be told: {share.why_unplaced}"
            cure = "delete it, and let its owner make another; its amount is taken from every card"
            obstacles.append(Obstacle(text, cure, pod.key))
    return obstacles


def _of_older_pod(pod: Pod, card_units: int) -> list[Obstacle]:
    """What the older plugin may have done with a pod; one without a card is told elsewhere."""
    obstacles = []
    is_known = bool(pod.annotations.get(ANNOTATION_RUNNING_ON))
    if pod.annotations.get(ANNOTATION_ASSIGNED) != "true" and not is_known:
        if pod.runs or pod.status.phase == "Running":
            text = (
                "it runs, and the older plugin never wrote that it has its card: it took another "
                "pod of the same size for this one, so the card on record may not be its own"
            )
            cure = "delete it, and let its owner make another"
        else:
            text = "it is bound, and its containers have not been given their card yet"
            cure = "wait until it runs; delete it if it never does"
        obstacles.append(Obstacle(text, cure, pod.key))
    if _asking(pod) > 1:
        text = "several containers of it ask, and the older plugin gave none of them a card"
        obstacles.append(Obstacle(text, "delete it, and let its owner make another", pod.key))
    decided = _whole(pod.annotations.get(ANNOTATION_CARD_UNITS, ""))
    large, small = max(decided, card_units), min(decided, card_units)
    if small and large >= _ANOTHER_UNIT * small:
        text = (
            f"its amount counts in another unit: its card had {decided} units when it was decided "
            f"on, and has {card_units} now"
        )
        obstacles.append(Obstacle(text, "delete it, and make it anew in the present unit", pod.key))
    return obstacles


def _asking(pod: Pod) -> int:
    try:
        return sum(bool(each.units) for each in containers_of(pod))
    except RequestError:
        return 0  # its amount cannot be read, and so neither can its card be told


def _whole(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else 0  # noqa: PLR2004


def _overfull(pods: Iterable[Pod], found: Inventory) -> list[Obstacle]:
    held = {card.uuid: 0 for card in found.cards}
    for pod in pods:
        share = share_of(pod, found)
        for uuid in share.cards if share is not None else ():
            held[uuid] += share.units if share is not None else 0
    return [
        Obstacle(
            f"pods hold {held[card.uuid]} units of {_name(card, found)}, which has {card.units}",
            "delete one of them"
            if found.is_legacy
            else "start our plugin with --reserved=none, as the older one had it; or delete one",
        )
        for card in found.cards
        if held[card.uuid] > card.units
    ]


def _name(card: Card, found: Inventory) -> str:
    return f"card {card.minor}" if found.is_legacy else f"card {card.index} ({card.uuid})"
