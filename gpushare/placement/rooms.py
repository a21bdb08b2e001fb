"""Measure all nodes for a kind of pods, and keep the rooms of the last kinds (pure).

Who has the rooms of an earlier measurement pays only for the nodes that have changed.
"""

from collections.abc import Generator, Hashable, Mapping
from types import MappingProxyType
from typing import Final

from gpushare.cards.model import Request
from gpushare.objects.model import Pod
from gpushare.placement.room import NodeRoom
from gpushare.placement.trial import World

MOST_KINDS: Final = 8
MOST_ROOMS: Final = 8000  # 1 to 2 KB each
UNUSED_RENEWALS: Final = 100  # after which a kind is dropped

Rooms = Mapping[str, NodeRoom]  # by node

NO_ROOMS: Final[Rooms] = MappingProxyType({})


class KeptRooms:
    """The rooms of the kinds of pods asked about last; several readers may share them.

    There are at most MOST_ROOMS, or those of one kind.
    """

    def __init__(self) -> None:
        self._kinds: dict[Hashable, tuple[Rooms, int]] = {}  # and when used; last used one last
        self._renewals = 0

    def renew(self) -> None:
        """Drop the kinds that nobody has used for UNUSED_RENEWALS calls of this."""
        self._renewals += 1
        for kind, (_, used) in list(self._kinds.items()):
            if used + UNUSED_RENEWALS < self._renewals:
                del self._kinds[kind]

    def get(self, kind: Hashable) -> Rooms | None:
        """Return the rooms of a kind as last measured."""
        rooms, _ = self._kinds.get(kind, (None, 0))
        if rooms is not None:
            self.put(kind, rooms)
        return rooms

    def put(self, kind: Hashable, rooms: Rooms) -> None:
        """Keep the rooms of a kind, and drop those used least recently if there are too many."""
        self._kinds.pop(kind, None)
        self._kinds[kind] = rooms, self._renewals
        while len(self._kinds) > 1 and (len(self._kinds) > MOST_KINDS or len(self) > MOST_ROOMS):
            del self._kinds[next(iter(self._kinds))]

    def __len__(self) -> int:
        """Return the number of rooms."""
        return sum(len(rooms) for rooms, _ in self._kinds.values())


def rooms_of(
    world: World, pod: Pod, request: Request, before: Rooms = NO_ROOMS
) -> Generator[None, None, Rooms]:
    """Return the room of every node that shares GPUs, in short steps.

    ``before`` are rooms of a pod of the same kind: a node that has not changed costs about 1 us,
    another one with 8 full cards 0.3 ms, half of it when its pods are first looked at.
    """
    found: dict[str, NodeRoom] = {}
    for name in sorted(world.node_names()):
        yield
        known = before.get(name)
        if known is None or not known.is_current(world, pod):
            known = NodeRoom(world, name, pod, request)
        found[name] = known
    return found


def kind_of(world: World, pod: Pod, request: Request) -> Hashable:
    """Return what decides about a pod's rooms: equal for pods that differ in their amount."""
    spec = pod.spec
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    return (
        pod.uid if world.ledger.has_reserve(pod.uid) else "",
        pod.priority,
        request.card_count,
        request.sets_cards,
        request.sets_limits,
        request.exposes_cards,
        request.runtime_class,
        request.policy.allowed,
        spec.tolerations,
        frozenset((spec.node_selector or {}).items()),
        affinity.required if affinity is not None else None,
    )
