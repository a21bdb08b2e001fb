"""Compares what the ledger holds with a fresh count from the pods, a slice of time after the other.

Nothing is repaired here: a difference is a defect of ours, and its two sides are what finds it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from gpushare.cards.model import Share
from gpushare.clock import Clock
from gpushare.ledger.ledger import Ledger

SLICE_SECONDS: Final = 0.002  # filter may have to wait for one
EVERY_SECONDS: Final = 60.0  # from the end of a round to the next one's beginning


@dataclass(frozen=True, slots=True)
class Difference:
    """Of one pod, or, where ``pod_uid`` is empty, of the sums that ``node`` is decided by."""

    pod_uid: str
    node: str
    held: str
    counted: str


class Pods(Protocol):
    """What a fresh count is made from."""

    def pod_uids(self) -> list[str]: ...

    def fresh_share(self, uid: str) -> Share | None:
        """What the pod with this uid holds by what was last seen of it; None: nothing."""
        ...


class Audit:
    """One round looks at every pod, every share and every node's sums, each at one moment.

    ``longest_pause``: seconds for which the longest slice has held up everything else so far.
    """

    def __init__(self, ledger: Ledger, pods: Pods, clock: Clock) -> None:
        self._ledger, self._pods, self._clock = ledger, pods, clock
        # Keys alone: tens of thousands of new tuples would have Python look for garbage.
        self._due: list[str] = []
        self._compare: Callable[[str], Difference | None] = self._pod
        self._next: list[Callable[[], None]] = []
        self._told: dict[str, Difference] = {}
        self._ended_at = clock.monotonic()
        self.rounds = 0
        self.longest_pause = 0.0

    def begin(self) -> None:
        """Begin a round now, in place of one that may be under way: all was just listed anew."""
        self._due = []
        self._next = [self._list_nodes, self._list_shares, self._list_pods]

    def step(self, seconds: float = SLICE_SECONDS) -> list[Difference]:
        """Go on for ``seconds``; return differences that were not returned before.

        Begins a round by itself a while after the last one has ended.
        """
        began = self._clock.monotonic()
        if not (self._due or self._next):
            if began - self._ended_at < EVERY_SECONDS:
                return []
            self.begin()
        found = []
        while self._due or self._next:
            if not self._due:
                self._next.pop()()
            elif (difference := self._look(self._compare, self._due.pop())) is not None:
                found.append(difference)
            if self._clock.monotonic() - began >= seconds:
                break
        else:
            self.rounds += 1
            self._ended_at = self._clock.monotonic()
        self.longest_pause = max(self.longest_pause, self._clock.monotonic() - began)
        return found

    def whole(self) -> list[Difference]:
        """A whole round at once, for tests: as ``step``, without its limit of time."""
        self.begin()
        return self.step(float("inf"))

    def look_at(self, uid: str) -> list[Difference]:
        """Compare one pod now; return a difference that was not returned before."""
        found = self._look(self._pod, uid)
        return [found] if found is not None else []

    def _look(self, compare: Callable[[str], Difference | None], key: str) -> Difference | None:
        found = compare(key)
        if found is None:
            self._told.pop(key, None)
            return None
        if self._told.get(key) == found:
            return None
        self._told[key] = found
        return found

    def _list_pods(self) -> None:
        self._due, self._compare = self._pods.pod_uids(), self._pod

    def _list_shares(self) -> None:
        self._due, self._compare = self._ledger.bound_pods(), self._pod

    def _list_nodes(self) -> None:
        self._due, self._compare = list(self._ledger.nodes()), self._node

    def _pod(self, uid: str) -> Difference | None:
        held, counted = self._ledger.share(uid), self._pods.fresh_share(uid)
        if held == counted:
            return None
        node = held.node if held is not None else counted.node if counted is not None else ""
        return Difference(uid, node, said(held), said(counted))

    def _node(self, node: str) -> Difference | None:
        account = self._ledger.account(node)
        if account is None:
            return None
        used: dict[str, int] = {}
        unplaced = 0
        for share in self._ledger.shares(node):
            unplaced += share.units if share.is_unplaced else 0
            for uuid in share.cards:
                used[uuid] = used.get(uuid, 0) + share.units
        held = {entry.card.uuid: (entry.used, entry.unplaced) for entry in account.cards}
        counted = {uuid: (used.get(uuid, 0), unplaced) for uuid in held}
        return None if held == counted else Difference("", node, str(held), str(counted))


def said(share: Share | None) -> str:
    """A share in a line of a log."""
    if share is None:
        return "nothing"
    if share.is_unplaced:
        return f"{share.units} units of every card of {share.node}: {share.why_unplaced}"
    return f"{share.units} units of each of {', '.join(share.cards)} of {share.node}"
