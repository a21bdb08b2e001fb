"""Compares the ledger with a fresh count from the pods, in slices of time, and counts overbooking.

Nothing is repaired here: a difference is a defect of this program, and its two sides show where.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from extender.decisions.pod_records import PodRecords
from gpushare.annotations import pod_annotations
from gpushare.cards.model import Share
from gpushare.clock import Clock
from gpushare.ledger.ledger import Ledger
from gpushare.ledger.resource_use import ResourceUse

log = logging.getLogger(__name__)

SLICE_SECONDS: Final = 0.002  # a filter call may have to wait for one slice
EVERY_SECONDS: Final = 60.0  # from the end of a round to the start of the next


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference for one pod, or, if ``pod_uid`` is empty, in the sums of ``node``."""

    pod_uid: str
    node: str
    held: str
    counted: str


# Takes the uid of a pod or the name of a node.
Compare = Callable[[str], Difference | None]


class Audit:
    """A round compares every pod, every share and every node's sums, each at one moment.

    The sums are those of GPUs and those of all resources that pods request.

    ``longest_pause``: seconds for which the longest slice so far has blocked everything else.
    """

    def __init__(self, ledger: Ledger, pods: PodRecords, use: ResourceUse, clock: Clock) -> None:
        self._ledger, self._pods, self._use, self._clock = ledger, pods, use, clock
        # Only keys: tens of thousands of new tuples would trigger garbage collection.
        self._due: list[str] = []
        self._compare: Compare = self._pod
        self._next: list[tuple[Callable[[], Iterable[str]], Compare]] = []
        self._returned: dict[tuple[Compare, str], Difference] = {}
        self._ended_at = clock.monotonic()
        self.rounds = 0
        self.longest_pause = 0.0

    def begin(self) -> None:
        """Begin a round now, and drop one that is under way."""
        self._due = []
        self._next = [
            (self._use.nodes, self._resources),
            (self._ledger.nodes, self._node),
            (self._ledger.bound_pods, self._pod),
            (self._pods.uids, self._pod),
        ]

    def step(self, seconds: float = SLICE_SECONDS) -> list[Difference]:
        """Continue for ``seconds``; return differences that were not returned before.

        Begins a round by itself EVERY_SECONDS after the last one has ended.
        """
        began = self._clock.monotonic()
        if not (self._due or self._next):
            if began - self._ended_at < EVERY_SECONDS:
                return []
            self.begin()
        found = []
        while self._due or self._next:
            if not self._due:
                keys, self._compare = self._next.pop()
                self._due = list(keys())
            elif (difference := self._new(self._compare, self._due.pop())) is not None:
                found.append(difference)
            if self._clock.monotonic() - began >= seconds:
                break
        else:
            self.rounds += 1
            self._ended_at = self._clock.monotonic()
        self.longest_pause = max(self.longest_pause, self._clock.monotonic() - began)
        return found

    def whole(self) -> list[Difference]:
        """Run a whole round at once, for tests: like ``step``, without its time limit."""
        self.begin()
        return self.step(float("inf"))

    def compare(self, uid: str) -> Difference | None:
        """Compare one pod now; return a difference that was not returned before."""
        return self._new(self._pod, uid)

    def _new(self, compare: Compare, key: str) -> Difference | None:
        found, place = compare(key), (compare, key)
        if found is None:
            self._returned.pop(place, None)
            return None
        if self._returned.get(place) == found:
            return None
        self._returned[place] = found
        return found

    def _pod(self, uid: str) -> Difference | None:
        held, pod = self._ledger.share(uid), self._pods.pod(uid)
        counted = None
        if pod is not None:
            counted = pod_annotations.share_of(pod, self._ledger.inventory(pod.node))
        if held == counted:
            return None
        node = held.node if held is not None else counted.node if counted is not None else ""
        return Difference(uid, node, _text(held), _text(counted))

    def _node(self, node: str) -> Difference | None:
        account = self._ledger.account(node)
        if account is None:
            return None
        used: dict[str, int] = {}
        unplaced = 0
        for share in self._ledger.shares(node):
            unplaced += share.units_everywhere
            for uuid in share.cards:
                used[uuid] = used.get(uuid, 0) + share.units
        held = {entry.card.uuid: (entry.used, entry.unplaced) for entry in account.cards}
        counted = {uuid: (used.get(uuid, 0), unplaced) for uuid in held}
        return None if held == counted else Difference("", node, str(held), str(counted))

    def _resources(self, node: str) -> Difference | None:
        held, counted = self._use.used(node), self._use.recounted(node)
        return None if held == counted else Difference("", node, str(held), str(counted))


def _text(share: Share | None) -> str:
    if share is None:
        return "nothing"
    if share.starts_nowhere:
        return f"{share.units} units of no GPU of {share.node}: {share.why_unplaced}"
    if share.is_unplaced:
        return f"{share.units} units of every GPU of {share.node}: {share.why_unplaced}"
    return f"{share.units} units of each of {', '.join(share.cards)} of {share.node}"


class Overbooking:
    """Counts and logs each time that a GPU comes to have more units used than it has."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._checked_at = 0
        self._overbooked: dict[str, frozenset[str]] = {}  # UUIDs by node
        self.times = 0

    def check(self) -> None:
        """Check the nodes that have changed since the last call."""
        changes = self._ledger.changes
        changed = changes.since(self._checked_at)
        self._checked_at = changes.now
        for node in {*self._ledger.nodes(), *self._overbooked} if changed is None else changed:
            account = self._ledger.account(node)
            found = (
                {e.card.uuid: e for e in account.cards if e.overcommitted}
                if account is not None
                else {}
            )
            for uuid in found.keys() - self._overbooked.get(node, frozenset()):
                self.times += 1
                held = found[uuid].used + found[uuid].reserved
                log.error(
                    "GPU holds more than it has",
                    extra={"node": node, "card": uuid, "has": found[uuid].card.units, "held": held},
                )
            if found:
                self._overbooked[node] = frozenset(found)
            else:
                self._overbooked.pop(node, None)
