"""Cache the verdicts on all nodes until something on a node changes (pure).

Equal requests (a class) have the same verdict on every node, so a call costs as much as the nodes
that changed since the last call of its class, and the names in the call.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from gpushare.cards.model import Request
from gpushare.cards.placement_policy import PlacementPolicy
from gpushare.ledger.changes import Changes
from gpushare.placement.rank import Rank
from gpushare.placement.reasons import NO_CARDS, Reason
from gpushare.placement.verdict import Verdict

Judge = Callable[[str], Verdict]

MOST_BYTES: Final = 40 * 2**20  # of all classes, except the last LEAST_CLASSES
LEAST_CLASSES: Final = 8
MOST_CLASSES: Final = 1000
FIT_BYTES: Final = 160  # of a name's entry, its rank and the place in ``ranks``
REJECTED_BYTES: Final = 50  # of a name's entry: reasons are shared
_JUDGED_AT_ONCE: Final = 8
MOST_UPDATED: Final = 4000  # verdicts, in one round
NAME_BYTES: Final = 100  # of a name in a placement policy, in addition to its characters

_Class = tuple[int, int, int, bool, bool, bool, str, PlacementPolicy]


class Verdicts:
    """The ranks of nodes that fit (``fits``) and the reasons of the others (``rejected``).

    ``ranks`` are the values of ``fits``, best first. A node in neither has no cards.
    """

    __slots__ = ("fits", "ranks", "rejected", "seen")

    def __init__(self, seen: int, verdicts: Iterable[tuple[str, Verdict]]) -> None:
        self.seen = seen
        self.fits: dict[str, Rank] = {}
        self.rejected: dict[str, Reason] = {}
        for name, verdict in verdicts:
            if isinstance(verdict, tuple):
                self.fits[name] = verdict
            elif verdict is not NO_CARDS:
                self.rejected[name] = verdict
        self.ranks = sorted(self.fits.values())

    @property
    def bytes(self) -> int:
        return FIT_BYTES * (len(self.fits) + 1) + REJECTED_BYTES * (len(self.rejected) + 1)

    def put(self, name: str, verdict: Verdict) -> None:
        before = self.fits.get(name)
        if before == verdict:
            return
        if before is not None:
            del self.ranks[bisect_left(self.ranks, before)], self.fits[name]
        self.rejected.pop(name, None)
        if isinstance(verdict, tuple):
            self.fits[name] = verdict
            insort(self.ranks, verdict)
        elif verdict is not NO_CARDS:
            self.rejected[name] = verdict

    def besides(self, others: Mapping[str, Verdict]) -> "Verdicts":
        """Return a copy with the verdicts ``others``."""
        made = Verdicts(self.seen, ())
        made.fits, made.rejected = dict(self.fits), dict(self.rejected)
        made.ranks = list(self.ranks)
        for name, verdict in others.items():
            made.put(name, verdict)
        return made


class VerdictCache:
    """``judging`` returns what judges nodes for one request, as they are at that time or later.

    Everything that a verdict depends on is then recorded in ``changes``.
    """

    def __init__(
        self,
        changes: Changes,
        names: Callable[[], Iterable[str]],
        judging: Callable[[Request], Judge],
    ) -> None:
        self._changes, self._names, self._judging = changes, names, judging
        self._classes: dict[_Class, Verdicts] = {}  # last used one last
        self._requests: dict[_Class, Request] = {}  # one of each class
        self._policy_bytes = 0  # of all classes

    def of(self, request: Request) -> Verdicts:
        """Return the current verdict on every node. Do not change or store the result."""
        which, judge = request.rank_key, self._judging(request)
        verdicts = self._classes.pop(which, None)
        now = self._changes.now
        changed = self._changes.since(verdicts.seen) if verdicts is not None else None
        if verdicts is None:
            self._policy_bytes += _bytes_of(request.policy)
        if verdicts is None or changed is None:
            verdicts = Verdicts(now, [(name, judge(name)) for name in self._names()])
        else:
            for name in changed:
                verdicts.put(name, judge(name))
            verdicts.seen = now
        self._classes[which] = verdicts
        self._requests[which] = request
        if changed is None:
            self._drop_longest_unused()
        return verdicts

    def renewing(self) -> Iterator[None]:
        """Rank every node that fits again, in short steps: the ranks of all have changed.

        Until then the former ranks are used. The classes that were used last come first.
        """
        for which, verdicts in reversed(list(self._classes.items())):
            yield
            if which in self._classes:
                judge = self._judging(self._requests[which])
                yield from self._putting(which, verdicts, list(verdicts.fits), judge)

    def updating(self) -> Iterator[None]:
        """Judge the nodes that have changed, in short steps, so that less is left for calls.

        The classes that were used last come first; after MOST_UPDATED verdicts the others wait.
        """
        most = MOST_UPDATED
        self._drop_longest_unused()  # nodes may have come, and more of them fit
        for which, verdicts in reversed(list(self._classes.items())):
            yield
            request = self._requests.get(which)
            if request is None:
                continue  # it was dropped meanwhile
            judge = self._judging(request)
            now, changed = self._changes.now, self._changes.since(verdicts.seen)
            if not changed or len(changed) > most:
                continue
            most -= len(changed)
            yield from self._putting(which, verdicts, changed, judge)
            verdicts.seen = max(verdicts.seen, now)

    def _putting(
        self, which: _Class, verdicts: Verdicts, names: Iterable[str], judge: Judge
    ) -> Iterator[None]:
        for place, name in enumerate(names):
            if place % _JUDGED_AT_ONCE == 0:
                yield
                if self._classes.get(which) is not verdicts:
                    return  # it was dropped meanwhile
            verdicts.put(name, judge(name))

    def _drop_longest_unused(self) -> None:
        """Stay within MOST_BYTES and MOST_CLASSES."""
        classes = self._classes
        used = self._policy_bytes + sum(each.bytes for each in classes.values())
        while len(classes) > (LEAST_CLASSES if used > MOST_BYTES else MOST_CLASSES):
            oldest = next(iter(classes))
            del self._requests[oldest]
            policy_bytes = _bytes_of(oldest[-1])
            used -= classes.pop(oldest).bytes + policy_bytes
            self._policy_bytes -= policy_bytes


def _bytes_of(policy: PlacementPolicy) -> int:
    if not policy.names_cards:
        return NAME_BYTES
    names = (*policy.models, *policy.only, *policy.never)
    return sum(NAME_BYTES + len(name) for name in names)
