"""Know which nodes to judge for a shape, and whether a plan takes too much work (pure)."""

from collections.abc import Collection, Generator, Sequence
from typing import Final

from gpushare.objects.scheduling import LABEL_HOSTNAME
from gpushare.placement.trial import World
from gpushare.planning.ask import Ask
from gpushare.planning.shapes import EqualMembers, Shape

# Nodes that one plan judges, for all shapes together: about 2 s of CPU and 100 MB, or 64 shapes on
# 5,000 nodes. A gang of one shape is always planned.
MOST_WORK: Final = 320_000
A_ZONE: Final = 4  # nodes that cost as much as a zone, whose containers are examined as garbage
NODES_A_STEP: Final = 512

Seen = tuple[int, int]  # changes of the ledger, and of other resources, so far


def seen_now(world: World) -> Seen:
    """Return the state of what decides about nodes, for ``changed_of``."""
    return world.ledger.changes.now, world.resource_changes.now


def changed_of(world: World, seen: Seen, nodes: Collection[str]) -> set[str]:
    """Return those of the nodes of which something may have changed since."""
    one, two = world.ledger.changes.since(seen[0]), world.resource_changes.since(seen[1])
    if one is None or two is None:
        return set(nodes)
    return {name for name in (*one, *two) if name in nodes}


class NodeNames:
    """The nodes of a world that may be eligible for a shape, as of the last change."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._seen: Seen | None = None
        self._sharing: Collection[str] = ()
        self._by_hostname: dict[str, list[str]] | None = None

    def of(self, shape: Shape) -> Collection[str]:
        """Return all eligible nodes, and others; few if the shape names its nodes."""
        if shape.named is not None:
            return shape.named
        if self._seen != seen_now(self._world):
            self._seen, self._sharing = seen_now(self._world), self._world.node_names()
            self._by_hostname = None
        hostname = (shape.pod.spec.node_selector or {}).get(LABEL_HOSTNAME)
        if hostname is not None:
            if self._by_hostname is None:
                self._by_hostname = self._read_hostnames()
            return self._by_hostname.get(hostname, ())
        if shape.request is not None:
            return self._sharing
        return list(self._world.all_node_names())

    def _read_hostnames(self) -> dict[str, list[str]]:
        found = dict[str, list[str]]()
        for name in self._world.all_node_names():
            node = self._world.node(name)
            hostname = node.labels.get(LABEL_HOSTNAME) if node is not None else None
            if hostname is not None:
                found.setdefault(hostname, []).append(name)
        return found


def is_too_much(
    world: World, names: NodeNames, ask: Ask, groups: Sequence[EqualMembers]
) -> Generator[None, None, bool]:
    """Return whether the groups differ too much to be planned together, before any is measured.

    Each group is judged on its nodes, and then sorted by zone.
    """
    if len(groups) == 1:
        return False
    zones = (yield from _zones(world, ask)) if ask.zone_key and ask.zone is None else 0
    work, more = 0, A_ZONE * zones
    for group in groups:
        yield
        work += len(names.of(group.shape)) + more
        if work > MOST_WORK:
            return True
    return False


def _zones(world: World, ask: Ask) -> Generator[None, None, int]:
    """Return the number of zones of all nodes."""
    found = set()
    for number, name in enumerate(list(world.all_node_names())):
        if number % NODES_A_STEP == 0:
            yield
        node = world.node(name)
        if node is not None:
            found.add(node.labels.get(ask.zone_key))
    return len(found)
