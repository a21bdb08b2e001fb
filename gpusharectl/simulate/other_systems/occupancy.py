"""Count pods that do not request memory by the GPUs that they use (pure).

Which GPU a pod has is often written nowhere. Then the result is the same for the same pods in the
same order: whole GPUs are the first idle ones, and a replica is of the GPU with the fewest used.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from gpushare.cards.model import Card, Inventory, Share
from gpushare.errors import RecordError
from gpushare.objects.model import Pod
from gpusharectl.simulate.other_systems import hami
from gpusharectl.simulate.other_systems.node_gpus import NodeGpus, Note, Sharing
from gpusharectl.simulate.other_systems.other_pods import gpus_of, is_hami


@dataclass(slots=True)
class _Node:
    """``slots``: by GPU, the pods that have a replica of it, by number."""

    gpus: NodeGpus
    slots: dict[str, dict[int, str]] = field(default_factory=dict)


@dataclass(slots=True)
class Counted:
    """``shares`` of one pod; ``note`` says what could not be counted as it is."""

    shares: list[Share] = field(default_factory=list)
    note: Note | None = None


class Occupancy:
    """Which GPUs of which node the pods of other systems use."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}

    def put_node(self, name: str, gpus: NodeGpus | None) -> None:
        """Set a node's GPUs; None if it is unknown how they are offered."""
        if gpus is None:
            self._nodes.pop(name, None)
        else:
            self._nodes[name] = _Node(gpus)

    def offered(self, node: str) -> NodeGpus | None:
        entry = self._nodes.get(node)
        return entry.gpus if entry is not None else None

    def replicas_used(self, node: str, uuid: str) -> int:
        entry = self._nodes.get(node)
        return len(entry.slots.get(uuid, ())) if entry is not None else 0

    def replicas_of(self, pod: Pod) -> int:
        """Return how many replicas a bound pod has."""
        entry = self._nodes.get(pod.node)
        every = entry.slots.values() if entry is not None else ()
        return sum(uid == pod.uid for slots in every for uid in slots.values())

    def remove(self, pod: Pod) -> None:
        """Free the replicas of a pod."""
        entry = self._nodes.get(pod.node)
        for slots in entry.slots.values() if entry is not None else ():
            for number in [number for number, uid in slots.items() if uid == pod.uid]:
                del slots[number]

    def count(self, pod: Pod, stock: Inventory | None, used: frozenset[str]) -> Counted:
        """Return what a bound pod uses. ``used`` are the GPUs that have pods, by UUID."""
        wanted = gpus_of(pod)
        if not wanted and not is_hami(pod):
            return Counted()
        entry = self._nodes.get(pod.node)
        if stock is None:
            return Counted(note=Note("not counted: the GPUs of the node are unknown"))
        if entry is not None and entry.gpus.sharing is Sharing.HAMI:
            return _hami(pod, entry.gpus.inventory)
        note = None
        if is_hami(pod):
            note = Note("counted by nvidia.com/gpu: the node has no GPUs of HAMi's")
        elif entry is None:
            note = Note("has a whole GPU of a node that shares the same GPUs by memory")
        if entry is None or entry.gpus.replicas == 1:
            made = _whole(pod, wanted, stock, used)
        else:
            made = _replicas(pod, wanted, entry)
        return Counted(made.shares, made.note or note)


def _whole(pod: Pod, wanted: int, stock: Inventory, used: frozenset[str]) -> Counted:
    idle = [card for card in stock.cards if card.uuid not in used]
    idle.sort(key=lambda card: not card.is_healthy)
    taken = idle[:wanted]
    note = None
    if len(taken) < wanted:
        note = Note("requests more GPUs than the node has left: only those are counted")
    return Counted(list(_shares(pod, [(card, card.units) for card in taken])), note)


def _replicas(pod: Pod, wanted: int, entry: _Node) -> Counted:
    replicas, taken = entry.gpus.replicas, dict[Card, int]()
    note = None
    for _ in range(min(wanted, replicas * len(entry.gpus.inventory.cards))):
        card = min(entry.gpus.inventory.cards, key=lambda card: len(entry.slots.get(card.uuid, ())))
        slots = entry.slots.setdefault(card.uuid, {})
        number = next((each for each in range(replicas) if each not in slots), None)
        if number is None:
            break
        slots[number] = pod.uid
        # In this way the parts of all replicas are exactly the GPU.
        before, after = (-(-card.units * each // replicas) for each in (number, number + 1))
        taken[card] = taken.get(card, 0) + after - before
        wanted -= 1
    if wanted:
        note = Note("requests more replicas than the node has left: only those are counted")
    return Counted(list(_shares(pod, list(taken.items()))), note)


def _hami(pod: Pod, stock: Inventory) -> Counted:
    try:
        amounts = list(_parts(pod, stock))
    except RecordError as err:
        # Its amount is unknown too: nothing else is known to fit.
        most = max((card.units for card in stock.cards), default=0)
        meta = pod.metadata
        share = Share(pod.uid, meta.namespace, meta.name, pod.node, most, (), str(err))
        text = f"counted on every GPU of the node, whole: {err}"
        return Counted([share], Note(text))
    note = None if amounts else Note("not counted: has only MIG devices of HAMi's")
    return Counted(list(_shares(pod, amounts)), note)


def _parts(pod: Pod, stock: Inventory) -> Iterator[tuple[Card, int]]:
    for uuid, part in hami.parts_of(pod).items():
        if hami.is_mig(uuid):
            continue
        card = stock.by_uuid(uuid)
        if card is None:
            raise RecordError(f"annotation {hami.ALLOCATED} names {uuid[:63]!r}, no GPU here")
        yield card, card.units if part.is_whole else -(-part.mib // stock.unit_mib)


def _shares(pod: Pod, amounts: list[tuple[Card, int]]) -> Iterator[Share]:
    """Yield a share for each different amount: a share has the same of each of its GPUs."""
    meta = pod.metadata
    for number, units in enumerate(sorted({units for _, units in amounts})):
        cards = tuple(card.uuid for card, of in amounts if of == units)
        uid = f"{pod.uid}#{number}" if number else pod.uid
        yield Share(uid, meta.namespace, meta.name, pod.node, units, cards)
