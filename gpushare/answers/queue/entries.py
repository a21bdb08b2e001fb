"""What waits for room, in the order in which it gets room, and the JSON of it (pure)."""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol

import msgspec

from gpushare.answers.queue.over_quota import OverQuota
from gpushare.answers.queue.quotas import QuotaList
from gpushare.cards.model import Request
from gpushare.objects.model import Pod

MOST_LISTED: Final = 1000  # in one answer: 0.5 MB


class Why(StrEnum):
    """Why an entry has no room yet. The first ones have a position in the queue.

    ``NOT_TRIED``: no plan was made since something changed for it. ``NO_ROOM``: no GPU has room.
    ``CLAIMS``: GPUs are claimed for it. ``BEHIND_FIRST``: the first entry has no room, and nothing
    may pass it. ``NO_RIGHT``: the extender may not remove the gate. The next four are about the
    quota of the namespace, in the words of Limit.

    Without a position: ``STARTING`` has room. ``RESTING`` had room and did not come.
    ``OTHER_GATE``: a scheduling gate of others keeps it. ``MEMBERS``: pods of the gang are missing.
    ``INVALID`` and ``BROKEN`` are as of gangs. A pod or gang is INVALID too if no node could grant
    the request even if it were empty, or if the pod's scheduler does not ask the extender.
    """

    NOT_TRIED = "NotTried"
    NO_ROOM = "NoRoom"
    CLAIMS = "ClaimsGPUs"
    BEHIND_FIRST = "BehindFirst"
    NO_RIGHT = "NoRight"
    OVER_QUOTA = "OverQuota"
    OVER_MODEL_QUOTA = "OverModelQuota"
    UNREADABLE_QUOTA = "UnreadableQuota"
    NAMESPACE_ENDS = "NamespaceEnds"
    STARTING = "Starting"
    RESTING = "Resting"
    OTHER_GATE = "OtherGate"
    MEMBERS = "WaitingForMembers"
    INVALID = "Invalid"
    BROKEN = "Broken"


class Claim(msgspec.Struct, rename="camel", frozen=True):
    """GPUs have been claimed for the entry for ``seconds``.

    It starts when ``pods`` pods that use them have ended. ``nodes`` have the GPUs.
    """

    seconds: float
    pods: int
    nodes: list[str] = []


class QueueEntry(msgspec.Struct, rename="camel", omit_defaults=True):
    """A pod, or a gang, that waits.

    ``place`` is the position, 1 for the first; absent without one. ``kind`` is Pod or Gang.
    ``pods`` are those that wait, and ``units`` what they request in all. ``since`` is when the pod,
    or the first member, was created. ``reason`` is a Why, and ``waits_for`` says more, as a
    sentence.
    """

    namespace: str
    name: str
    kind: str
    pods: int
    units: int
    priority: int
    since: str
    waiting_seconds: float
    reason: str
    waits_for: str
    place: int = 0
    claim: Claim | None = None


class QueueList(msgspec.Struct, rename="camel"):
    """Entries in the order of their positions, then those without one.

    ``length`` is the number of positions in the whole queue, whatever is listed. ``left_out``
    counts entries that are not listed. ``order`` and ``backfill`` are settings of the queue. A unit
    has ``unit_mib`` MiB, 0 from an extender of an earlier version.
    """

    entries: list[QueueEntry]
    length: int
    left_out: int = 0
    order: str = ""
    backfill: bool = True
    unit_mib: int = msgspec.field(name="unitMiB", default=0)


class QueuePlace(msgspec.Struct, rename="camel", omit_defaults=True):
    """The position of a pod, or of its gang: ``place`` of ``length``, absent without one.

    The other fields are those of QueueEntry. ``text`` says all of it in a sentence.
    """

    length: int
    kind: str
    since: str
    waiting_seconds: float
    reason: str
    text: str
    place: int = 0


@dataclass(frozen=True, slots=True)
class QueueFigures:
    """Numbers for metrics. ``entries`` are those with a position.

    ``pods``, ``units`` and ``oldest_seconds`` are by namespace, of pods that wait for room, members
    of gangs included. ``first_seconds`` is for how long the same entry has been the first one
    without room; of several, which may use other nodes, the longest.
    """

    entries: int = 0
    pods: Mapping[str, int] = field(default_factory=dict)
    units: Mapping[str, int] = field(default_factory=dict)
    oldest_seconds: Mapping[str, float] = field(default_factory=dict)
    quotas: Mapping[str, int] = field(default_factory=dict)
    used: Mapping[str, int] = field(default_factory=dict)
    unreadable: int = 0
    first_seconds: float = 0.0


class QueueStates(Protocol):
    """What is known about the queue and the quotas now. Positions are known to the leader only."""

    def over_quota(self, pod: Pod, request: Request) -> OverQuota | None:
        """Return why the quota leaves nothing for a pod; None if it does."""

    def full_models(self, pod: Pod, request: Request) -> Mapping[str, OverQuota]:
        """Return the models of GPUs for which the quota leaves too little."""

    def entries(
        self, namespace: str = "", most: int = MOST_LISTED
    ) -> Generator[None, None, QueueList]:
        """Return what waits in a namespace, or in all, in short steps."""

    def place_of(self, pod: Pod) -> Generator[None, None, QueuePlace | None]:
        """Return where a pod without a node is in the queue; None if it is not there."""

    def is_behind_first(self, pod: Pod) -> bool:
        """Return whether a pod must not pass the first entry, which has no room."""

    def is_asked_about(self, pod: Pod) -> bool:
        """Return whether the scheduler of a pod asks the extender about it; True if not known."""

    def places(self) -> Generator[None, None, list[list[str]]]:
        """Return the uids of the pods at each position, in order: one, or a gang's members."""

    def quotas(self, namespace: str = "") -> Generator[None, None, QuotaList]:
        """Return the quota of a namespace, or of all that say or use something."""

    def figures(self) -> Generator[None, None, QueueFigures]:
        """Count what waits, for metrics."""


class NoQueue:
    """Nothing is known about a queue or quotas. Implements QueueStates."""

    def over_quota(self, pod: Pod, request: Request) -> OverQuota | None:  # noqa: ARG002
        return None

    def full_models(self, pod: Pod, request: Request) -> Mapping[str, OverQuota]:  # noqa: ARG002
        return {}

    def entries(
        self,
        namespace: str = "",  # noqa: ARG002
        most: int = MOST_LISTED,  # noqa: ARG002
    ) -> Generator[None, None, QueueList]:
        yield from ()
        return QueueList([], 0)

    def place_of(self, pod: Pod) -> Generator[None, None, QueuePlace | None]:  # noqa: ARG002
        yield from ()
        return None

    def is_behind_first(self, pod: Pod) -> bool:  # noqa: ARG002
        return False

    def is_asked_about(self, pod: Pod) -> bool:  # noqa: ARG002
        return True

    def places(self) -> Generator[None, None, list[list[str]]]:
        yield from ()
        return []

    def quotas(self, namespace: str = "") -> Generator[None, None, QuotaList]:  # noqa: ARG002
        yield from ()
        return QuotaList([])

    def figures(self) -> Generator[None, None, QueueFigures]:
        yield from ()
        return QueueFigures()


NO_QUEUE: Final = NoQueue()
