"""Keep which pods are being evicted, and for which pods or gangs (pure)."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

from gpushare.answers.preemptions import PreemptionFacts
from gpushare.ledger.holds import Slot
from gpushare.objects.model import Pod
from gpushare.preemption.ending import EndingPods

FIRST_WAIT_SECONDS: Final = 60.0
MOST_WAIT_SECONDS: Final = 3600.0
SPARED_SECONDS: Final = 60.0


@dataclass(slots=True, eq=False)
class PreemptionRecord:
    """The extender makes room for ``pods`` (by uid), whose ``slots`` the ledger has as a claim.

    ``owner`` is the owner of the claim: the uid of a pod, or the name of a gang; ``name`` is for
    people. ``evicted`` are the uids of the ``victims`` whose eviction the API server has accepted,
    or who are gone. ``is_stopped``: no more of them are evicted; with ``must_wait`` the next plan
    comes later. ``waits_for`` are pods that were about to
    end before. ``claimed_at_ns`` is by the wall clock, to compare it with decisions. ``tried`` is
    the revision of the cluster at which the room could not be used yet.
    """

    owner: str
    name: str
    priority: int
    pods: dict[str, Pod]
    slots: tuple[Slot, ...]
    victims: tuple[Pod, ...]
    claimed_at_ns: int
    waits_for: frozenset[str] = frozenset()
    evicted: set[str] = field(default_factory=set)
    is_stopped: bool = False
    must_wait: bool = False
    tried: tuple[int, int] | None = None


@dataclass(slots=True)
class _Wait:
    seconds: float
    until: float


class Preemptions:
    """All preemptions of the extender that are under way. Implements PreemptionStates.

    Times are in seconds of a monotonic clock.
    """

    def __init__(self, ending: EndingPods) -> None:
        self._ending = ending
        self._records: dict[str, PreemptionRecord] = {}
        self._owner_of: dict[str, str] = {}  # by uid of a pod that waits
        self._victims_on: dict[str, set[str]] = {}  # uids by node
        self._waits: dict[str, _Wait] = {}  # by owner
        self._refused: set[str] = set()  # owners
        self._spared: dict[str, float] = {}  # by uid, until when

    @property
    def victims(self) -> frozenset[str]:
        """The uids of all pods that are, or are about to be, evicted."""
        records = self._records.values()
        return frozenset(pod.uid for record in records for pod in record.victims)

    @property
    def evicted(self) -> frozenset[str]:
        """The uids of the victims that have been evicted."""
        return frozenset(uid for record in self._records.values() for uid in record.evicted)

    @property
    def count(self) -> int:
        """The number of pods and gangs for which pods are being evicted."""
        return sum(bool(record.victims) for record in self._records.values())

    def all(self) -> list[PreemptionRecord]:
        return list(self._records.values())

    def get(self, owner: str) -> PreemptionRecord | None:
        return self._records.get(owner)

    def put(self, record: PreemptionRecord) -> None:
        """Keep a record, instead of an earlier one of the same owner."""
        self.drop(record.owner)
        self._records[record.owner] = record
        self._owner_of |= dict.fromkeys(record.pods, record.owner)
        for pod in record.victims:
            self._victims_on.setdefault(pod.node, set()).add(pod.uid)

    def drop(self, owner: str) -> None:
        record = self._records.pop(owner, None)
        if record is None:
            return
        for uid in record.pods:
            self._owner_of.pop(uid, None)
        for pod in record.victims:
            self._victims_on[pod.node].discard(pod.uid)
            if not self._victims_on[pod.node]:
                del self._victims_on[pod.node]

    def clear(self) -> None:
        """Forget everything: another replica decides."""
        self._records.clear()
        self._owner_of.clear()
        self._victims_on.clear()
        self._waits.clear()
        self._refused.clear()
        self._spared.clear()

    def is_for(self, uid: str) -> bool:
        """Return whether the extender makes room for this pod."""
        return uid in self._owner_of

    def victims_on(self, node: str) -> Collection[str]:
        return self._victims_on.get(node, ())

    def of(self, uid: str) -> PreemptionFacts | None:
        """Return what is evicted for a pod or its gang; None if nothing is."""
        record = self._records.get(self._owner_of.get(uid, ""))
        if record is None or not record.victims:
            return None
        ending = self._ending
        running = [pod.uid for pod in record.victims if pod.uid in record.evicted]
        left = [found for each in running if (found := ending.seconds_left(each)) is not None]
        return PreemptionFacts(
            tuple((pod.metadata.namespace, pod.metadata.name) for pod in record.victims),
            sum(ending.is_gone(uid) for uid in record.evicted),
            max(left, default=None),
            begun=bool(record.evicted),
        )

    def wait_longer(self, owner: str, now: float) -> None:
        """Let the next plan of an owner that needs victims wait, twice as long as the last time."""
        before = self._waits.get(owner)
        seconds = FIRST_WAIT_SECONDS if before is None else before.seconds * 2
        seconds = min(MOST_WAIT_SECONDS, seconds)
        self._waits[owner] = _Wait(seconds, now + seconds)

    def spare(self, uid: str, now: float) -> None:
        """Let a pod that could not be evicted be no victim for SPARED_SECONDS."""
        self._spared[uid] = now + SPARED_SECONDS

    def spared(self, now: float) -> frozenset[str]:
        self._spared = {uid: until for uid, until in self._spared.items() if until > now}
        return frozenset(self._spared)

    def may_try_again(self, stopped: PreemptionRecord) -> bool:
        """Return whether the owner of a plan that was stopped may choose other victims at once.

        That is so if nobody was evicted, and the first time.
        """
        if not stopped.evicted:
            return True
        is_first = stopped.owner not in self._refused
        self._refused.add(stopped.owner)
        return is_first

    def has_to_wait(self, owner: str, now: float) -> bool:
        wait = self._waits.get(owner)
        return wait is not None and now < wait.until

    def keep_only(self, exists: Callable[[str], bool]) -> None:
        """Forget what delays plans of owners that do not have to be placed any more."""
        self._waits = {owner: wait for owner, wait in self._waits.items() if exists(owner)}
        self._refused = set(filter(exists, self._refused))
