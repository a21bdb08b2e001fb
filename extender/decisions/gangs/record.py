"""What the leader knows about one gang beyond its pods and its hold (pure)."""

from dataclasses import dataclass, field
from math import inf
from typing import Final

from gpushare.planning.ask import NoPlan

FIRST_WAIT_SECONDS: Final = 10.0
FIRST_REST_SECONDS, MOST_REST_SECONDS = 1.0, 30.0  # between plans of a gang that has begun
MOST_WAIT_SECONDS: Final = 300.0

# What a plan depends on: the revisions of the ledger, of the nodes' other resources, of the
# namespaces, and of the gang.
Revision = tuple[int, int, int, int]


@dataclass(slots=True)
class GangRecord:
    """Times are in seconds of a monotonic clock.

    ``plan`` names the plan whose slots are held or were bound; empty without one. ``held_at`` is
    when they were taken, ``begun_at`` when a member with GPU memory was first found bound,
    ``is_whole`` whether the minimum has been bound at one time, ``holds_more`` whether slots were
    taken since then for other members. ``may_have_worked``: nobody knows whether the minimum has
    been bound, and once the time of the gang is over, it counts as whole. ``ended`` counts members
    that have succeeded, which no watch shows; controllers with the uids ``ended_of`` have created
    them.
    ``tried`` is what the last plan that failed was based on, ``failed_at`` when that was, and
    ``no_room`` its result.
    ``rest_seconds`` is how long after that no plan is made for a gang that has begun, unless it
    changes itself.
    ``stranded_since`` is when members that were released into a zone first had no room in it.
    ``lacks_since`` is when there were first too few members for one that was rejected, or is gated
    or bound.
    ``offered`` has the members that kube-scheduler would have bound to their slot's node; ``avoid``
    has nodes by member on which it would not.
    """

    owner: str
    plan: str = ""
    held_at: float = -inf
    begun_at: float | None = None
    is_whole: bool = False
    may_have_worked: bool = False
    holds_more: bool = False
    is_broken: bool = False
    ended: int = 0
    ended_of: frozenset[str] = frozenset()
    tried: Revision | None = None
    failed_at: float = -inf
    no_room: NoPlan | None = None
    wait_until: float = -inf
    wait_seconds: float = 0.0
    rest_seconds: float = 0.0
    stranded_since: float | None = None
    lacks_since: float | None = None
    offered: set[str] = field(default_factory=set)
    avoid: dict[str, frozenset[str]] = field(default_factory=dict)

    @property
    def unused(self) -> float:
        """Return a number that grows with how often the gang had room and did not come, or 0."""
        return self.wait_seconds / FIRST_WAIT_SECONDS

    def wait_longer(self, now: float) -> None:
        """Make no plan for a while, twice as long as the last time."""
        self.wait_seconds = min(MOST_WAIT_SECONDS, self.wait_seconds * 2 or FIRST_WAIT_SECONDS)
        self.wait_until = now + self.wait_seconds

    def rest_longer(self) -> None:
        """Rest after each plan that fails, twice as long as the last time."""
        longer = self.rest_seconds * 2 or FIRST_REST_SECONDS
        self.rest_seconds = min(MOST_REST_SECONDS, longer)

    def rests(self, now: float, version: int, least: float = 0.0) -> bool:
        """Return whether to make no plan yet, ``least`` seconds at least; a changed gang is new."""
        is_same = self.tried is not None and self.tried[-1] == version
        return is_same and now - self.failed_at < max(least, self.rest_seconds)
