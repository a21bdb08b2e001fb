"""The fewest moves, by trying every sequence of at most two."""

from collections.abc import Iterator
from itertools import permutations, product

from gpushare.contract import LABEL_CARD_COUNT, RESOURCE_MEMORY
from gpushare.objects.model import Pod
from tests.unit.gpushare.defragment.states import CARD, State

MOST = 2

_Cards = frozenset[tuple[str, int]]


class Used:
    """Pods on cards: units, cores, node and indexes by name."""

    def __init__(
        self, pods: dict[str, tuple[int, int, str, tuple[int, ...]]], state: State
    ) -> None:
        self.pods = pods
        self._nodes = state.world.nodes
        self._cards = {
            name: len(state.world.ledger.inventory(name).cards)  # type: ignore[union-attr]
            for name in self._nodes
        }

    def names(self) -> list[str]:
        return sorted(self._nodes)

    def cards(self) -> Iterator[tuple[str, int]]:
        for name in self.names():
            yield from ((name, index) for index in range(self._cards[name]))

    def free(self, name: str, index: int) -> int:
        used = (
            u for u, _, node, indexes in self.pods.values() if node == name and index in indexes
        )
        return CARD - sum(used)

    def cores_left(self, name: str) -> int:
        used = sum(c for _, c, node, _ in self.pods.values() if node == name)
        return int(self._nodes[name].allocatable["cpu"]) - used

    def choice(
        self, units: int, count: int, cpu: int, name: str, closed: _Cards
    ) -> tuple[int, ...] | None:
        """Return the cards that binpack gives to a pod."""
        if self.cores_left(name) < cpu:
            return None
        fits = sorted(
            (self.free(name, index), index)
            for index in range(self._cards[name])
            if (name, index) not in closed and self.free(name, index) >= units
        )
        found = tuple(sorted(index for _, index in fits[:count]))
        return found if len(found) == count else None

    def after(self, moved: str, name: str, closed: _Cards) -> "Used | None":
        """Return the same after a move; None if there is no room."""
        left = dict(self.pods)
        units, cpu, node, indexes = left.pop(moved)
        made = Used.__new__(Used)
        made.pods, made._nodes, made._cards = left, self._nodes, self._cards
        mine = frozenset((node, index) for index in indexes)
        chosen = made.choice(units, len(indexes), cpu, name, closed | mine)
        if chosen is None:
            return None
        left[moved] = units, cpu, name, chosen
        return made


def used_of(state: State) -> Used:
    found = {}
    for uid, pod in state.world.running.items():
        share = state.world.ledger.share(uid)
        assert share is not None
        indexes = tuple(sorted(int(uuid.rpartition("-")[2]) for uuid in share.cards))
        found[uid] = share.units, int(pod.containers[0].requests.get("cpu", 0)), pod.node, indexes
    return Used(found, state)


def fewest_for_a_card(state: State) -> int | None:
    """Return with how many moves one more card is free; None if two are not enough."""
    now = used_of(state)
    empty = frozenset(each for each in now.cards() if now.free(*each) == CARD)
    for number in range(1, MOST + 1):
        for target in (each for each in now.cards() if each not in empty):
            for after in _moved(state, now, number, empty | {target}):
                if after.free(*target) == CARD:
                    return number
    return None


def fewest_for_a_pod(state: State) -> int | None:
    """Return with how many moves the wanted pod fits; None if two are not enough."""
    now = used_of(state)
    units, count, cpu = asked(state.wanted)
    for number in range(MOST + 1):
        for name in now.names():
            everything = frozenset(each for each in now.cards() if each[0] == name)
            for target in _sets(now, name, count):
                # Pods must not return that left because of their cores.
                closed = target if now.cores_left(name) >= cpu else everything
                for after in _moved(state, now, number, closed):
                    chosen = after.choice(units, count, cpu, name, frozenset())
                    if chosen is not None and {(name, index) for index in chosen} == target:
                        return number
    return None


def asked(pod: Pod) -> tuple[int, int, int]:
    """Return units of each card, cards and cores."""
    requests, count = pod.containers[0].requests, int(pod.labels.get(LABEL_CARD_COUNT, 1))
    return int(requests[RESOURCE_MEMORY]) // count, count, int(requests.get("cpu", 0))


def _sets(now: Used, name: str, count: int) -> Iterator[_Cards]:
    here = [each for each in now.cards() if each[0] == name]
    yield from {frozenset(some) for some in permutations(here, count)}


def _moved(state: State, now: Used, number: int, closed: _Cards) -> Iterator[Used]:
    """Return what is used after each sequence of so many moves."""
    uids = [each.uid for each in state.movables]
    for moved in permutations(uids, number):
        for names in product(now.names(), repeat=number):
            after: Used | None = now
            for uid, name in zip(moved, names, strict=True):
                after = after.after(uid, name, closed) if after is not None else None
            if after is not None:
                yield after
