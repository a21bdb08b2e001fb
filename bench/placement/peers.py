"""Places pods by the rules of others: FGD, best fit, kube-scheduler's scores, at random."""

import random
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from math import exp
from typing import Final

from bench.placement.books import Books, Place
from bench.placement.trace import CARD, Trace, TracePod

Score = tuple[float, ...]  # the least is the best
Rated = tuple[Score, tuple[int, ...]]
Rate = Callable[[TracePod, int], Rated | None]


class ByScore:
    """Places a pod on the node with the least score; ``rate`` returns it with the cards.

    ``rate`` is asked again about the nodes that have changed since the last equal pod.
    """

    def __init__(self, books: Books, rate: Rate) -> None:
        self._books, self._rate = books, rate
        self._kinds: dict[TracePod, _Kind] = {}

    def place(self, pod: TracePod, _uid: str) -> Place | None:
        books, kind = self._books, self._kinds.get(pod)
        if kind is None:
            kind = self._kinds[pod] = _Kind()
            changed: Iterable[int] = range(len(books.nodes))
        else:
            changed = set(books.changed[kind.seen :])
        kind.seen = len(books.changed)
        for node in changed:
            kind.put(node, self._rate(pod, node) if books.hosts_pod(pod, node) else None)
        if not kind.order:
            return None
        _, node = kind.order[0]
        return Place(node, kind.rated[node][1])

    def placed(self, _pod: TracePod, _uid: str, _place: Place) -> None: ...

    def removed(self, _pod: TracePod, _uid: str, _place: Place) -> None: ...


class _Kind:
    """The ratings of all nodes for equal pods, as of change ``seen``."""

    def __init__(self) -> None:
        self.seen = 0
        self.rated: dict[int, Rated] = {}
        self.order: list[tuple[Score, int]] = []

    def put(self, node: int, rated: "Rated | None") -> None:
        before = self.rated.pop(node, None)
        if before is not None:
            del self.order[bisect_left(self.order, (before[0], node))]
        if rated is not None:
            self.rated[node] = rated
            insort(self.order, (rated[0], node))


def tightest(pod: TracePod, free: Sequence[int]) -> tuple[int, ...] | None:
    """Return the cards with the fewest free units that are enough."""
    fitting = sorted((units, i) for i, units in enumerate(free) if units >= pod.units)
    return tuple(i for _, i in fitting[: pod.cards]) if len(fitting) >= pod.cards else None


def best_fit(books: Books) -> ByScore:
    """Prefer the least CPU and GPU left, each as a part of what the largest node has."""
    most_cpu = max(node.cpu for node in books.nodes)
    most_gpu = CARD * max(node.cards for node in books.nodes)

    def rate(pod: TracePod, i: int) -> Rated | None:
        cards = tightest(pod, books.free[i])
        if cards is None:
            return None
        left = books.cpu[i] / most_cpu + sum(books.free[i]) / most_gpu
        return (left, i), cards

    return ByScore(books, rate)


def gpu_memory_only(books: Books) -> ByScore:
    """Pack by GPU memory: the fullest card, then the fullest node, whatever CPU is left."""

    def rate(pod: TracePod, i: int) -> Rated | None:
        free = books.free[i]
        cards = tightest(pod, free)
        if cards is None:
            return None
        chosen = sum(free[k] for k in cards) / len(cards)
        return (chosen, (sum(free) - pod.size) / len(free), i), cards

    return ByScore(books, rate)


def at_random(books: Books, seed: int) -> ByScore:
    draw = random.Random(seed)  # noqa: S311 - the same each time

    def rate(pod: TracePod, i: int) -> Rated | None:
        cards = tightest(pod, books.free[i])
        return ((draw.random(),), cards) if cards is not None else None

    return ByScore(books, rate)


def kube_scheduler(books: Books, seed: int) -> ByScore:
    """Score as kube-scheduler does by default: LeastAllocated and BalancedAllocation.

    Equal nodes are chosen from at random.
    """
    draw = random.Random(seed)  # noqa: S311 - the same each time

    def rate(pod: TracePod, i: int) -> Rated | None:
        node, cards = books.nodes[i], tightest(pod, books.free[i])
        if cards is None:
            return None
        cpu = (books.cpu[i] - pod.cpu) / node.cpu
        memory = (books.memory[i] - pod.memory) / node.memory
        least = int(100 * (cpu + memory) / 2)
        balanced = int(100 * (1 - abs(cpu - memory) / 2))
        return (-(least + balanced), draw.random()), cards

    return ByScore(books, rate)


class Elsewhere:
    """Stands for nodes without GPU that have room for every pod without GPU."""

    def place(self, _pod: TracePod, _uid: str) -> Place | None:
        """Return None: the pod is on none of the trace's nodes."""
        return None

    def placed(self, _pod: TracePod, _uid: str, _place: Place) -> None: ...

    def removed(self, _pod: TracePod, _uid: str, _place: Place) -> None: ...


class Fgd:
    """Fragmentation gradient descent (Weng et al., "Beware of Fragmentation", ATC 2023).

    A pod goes where the expected fragmentation rises least: the idle units that a pod of the mix
    could not use, averaged over the mix. The score has 100 levels of a sigmoid, as in the paper's
    artifact; equal ones go to the node with the least CPU and GPU left.
    """

    LEVELS: Final = 100

    def __init__(self, trace: Trace, books: Books) -> None:
        self._books = books
        self._most_cpu = max(node.cpu for node in trace.nodes)
        counted = Counter((p.cpu, p.cards, p.units, p.models) for p in trace.pods)
        total = sum(counted.values())
        grouped: dict[tuple[int, int, tuple[str, ...]], list[tuple[int, float]]] = {}
        for (cpu, cards, units, models), number in counted.items():
            if cards:
                grouped.setdefault((cards, units, models), []).append((cpu, number / total))
        self._none = sum(n for (_, cards, _, _), n in counted.items() if not cards) / total
        self._groups = []
        for (cards, units, models), each in grouped.items():
            each.sort()
            cores, sums = [cpu for cpu, _ in each], [0.0]
            for _, part in each:
                sums.append(sums[-1] + part)
            self._groups.append((cards, units, models, cores, sums))
        self._known: dict[tuple[str, int, tuple[int, ...]], float] = {}

    def system(self) -> ByScore:
        return ByScore(self._books, self._rate)

    def _rate(self, pod: TracePod, i: int) -> Rated | None:
        books = self._books
        node, free = books.nodes[i], books.free[i]
        first = tightest(pod, free)
        if first is None:
            return None
        options = [first]
        if pod.cards == 1:
            by_free = {units: (k,) for k, units in reversed(list(enumerate(free)))}
            options = [by_free[units] for units in sorted(by_free) if units >= pod.units]
        before = self._fragments(node.model, books.cpu[i], sorted(free))
        best: tuple[float, tuple[int, ...]] | None = None
        for cards in options:
            left = list(free)
            for k in cards:
                left[k] -= pod.units
            rise = self._fragments(node.model, books.cpu[i] - pod.cpu, sorted(left)) - before
            if best is None or rise < best[0]:
                best = rise, cards
        assert best is not None
        level = int(self.LEVELS / (1 + exp(best[0] / CARD)))
        left_over = (books.cpu[i] - pod.cpu) / self._most_cpu + sum(free) / (8 * CARD)
        return (-level, left_over, i), best[1]

    def _fragments(self, model: str, cpu: int, free: list[int]) -> float:
        key = model, cpu, tuple(free)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._counted(model, cpu, free)
        return found

    def _counted(self, model: str, cpu: int, free: list[int]) -> float:
        total = sum(free)
        found = self._none * total
        for cards, units, models, cores, sums in self._groups:
            hosted = sums[bisect_right(cores, cpu)] if not models or model in models else 0.0
            unable = sums[-1] - hosted
            small = first = 0
            for each in free:
                if each >= units:
                    break
                small += each
                first += 1
            if len(free) - first < cards:
                unable, hosted = sums[-1], 0.0
            found += unable * total + hosted * small
        return found
