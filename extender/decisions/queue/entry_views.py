"""Describe what waits: why each entry has no room yet, and what it waits for (pure)."""

import datetime as dt
from collections.abc import Callable, Generator, Hashable, Iterable
from typing import Final

from extender.decisions.queue.standings import Shown, Standings, WaitingGang, WaitingPod
from extender.decisions.queue.waiting_pods import Kind
from extender.settings.configuration import QueueSettings
from gpushare.answers.gangs import GangView, Phase
from gpushare.answers.pending.sentences import Sentences
from gpushare.answers.queue import over_quota, text
from gpushare.answers.queue.entries import Claim, QueueEntry, Why
from gpushare.answers.queue.over_quota import LIMITS, Limit, OverQuota
from gpushare.errors import RequestError
from gpushare.groups.group import Group
from gpushare.objects.model import Pod
from gpushare.quota.order import Standing

MOST_COST: Final = 30  # of one answer, in sentences: 0.3 to 0.9 s with 1,000 full nodes
_NS: Final = 1_000_000_000
_OF_LIMITS: Final = {
    Limit.UNITS: Why.OVER_QUOTA,
    Limit.MODEL: Why.OVER_MODEL_QUOTA,
    Limit.UNREADABLE: Why.UNREADABLE_QUOTA,
    Limit.ENDING: Why.NAMESPACE_ENDS,
}
_OF_ROOM: Final = frozenset({Why.NO_ROOM, Why.NOT_TRIED, Why.BEHIND_FIRST})
_OF_PHASES: Final = {
    Phase.WAITING_FOR_MEMBERS.value: Why.MEMBERS,
    Phase.INVALID.value: Why.INVALID,
    Phase.BROKEN.value: Why.BROKEN,
    Phase.STARTING.value: Why.STARTING,
}

Failed = Iterable[tuple[Standing, Group | Kind]]
ClaimOf = Callable[[str], Claim | None]


class EntryViews:
    """The entries of one answer, as of now. ``failed`` are those without room, in order.

    ``claim_of`` returns what is claimed for an owner, and ``owners`` have the positions, in order.
    Sentences name pods outside the namespace ``only`` if that is None.
    """

    def __init__(
        self,
        standings: Standings,
        settings: QueueSettings,
        *,
        failed: Failed,
        claim_of: ClaimOf,
        only: str | None,
        owners: Iterable[str] = (),
    ) -> None:
        self._gangs, self._state = standings.gangs, standings.gangs.state
        self._standings, self._quotas = standings, standings.quotas
        self._settings, self._claim_of = settings, claim_of
        self._failed: set[Hashable] = set()
        first = ""  # the owner of the first without room
        for standing, entry in failed:
            first = first or standing.owner
            self._failed.add(standing.owner if isinstance(entry, Group) else entry)
        places = (place for place, owner in enumerate(owners, 1) if owner == first)
        self._first_place = next(places, 0)
        self._sentences, self._only = Sentences(self._state, self._state.rooms), only
        self._sentences.renew()
        self._now = self._state.clock.wall_ns() / _NS

    def view(self, shown: Shown, place: int) -> Generator[None, None, QueueEntry | None]:
        """Return an entry with its position, 0 for none; None if it does not wait for room."""
        if isinstance(shown, WaitingGang):
            return self._gang(shown, place)
        return (yield from self._pod(shown, place))

    def reason(self, shown: Shown, place: int) -> Why | None:
        """Return why an entry has no room yet; None if it does not wait for room."""
        if isinstance(shown, WaitingGang):
            view = self._view_of(shown.group)
            return self._why_gang(shown.group, view, place) if view is not None else None
        return self._why_pod(shown, place, self._over(shown.pod))

    def more(self, why: Why, owner: str) -> str:
        """Return what the sentence about a pod or gang does not say; empty for most reasons."""
        found = self._claim_of(owner)
        if why is Why.CLAIMS and found is not None:
            return text.claim(found)
        if why is Why.RESTING:
            return text.resting(self._standings.rests_for(owner))
        return text.AUTOSCALED if self._settings.autoscaled and why is Why.NO_ROOM else ""

    def age(self, created: str) -> float:
        """Return the seconds since a timestamp; 0 if it cannot be read."""
        try:
            return round(max(0.0, self._now - dt.datetime.fromisoformat(created).timestamp()), 1)
        except ValueError:
            return 0.0

    def _gang(self, shown: WaitingGang, place: int) -> QueueEntry | None:
        group = shown.group
        view = self._view_of(group)
        why = self._why_gang(group, view, place) if view is not None else None
        if view is None or why is None:
            return None
        owner = str(group.key)
        behind = why is Why.BEHIND_FIRST
        more = _sentence(text.behind(self._first_place)) if behind else self.more(why, owner)
        if why is Why.INVALID and view.phase == Phase.WAITING_FOR_ROOM:
            more = text.NEVER_FITS
        return QueueEntry(
            namespace=group.key.namespace,
            name=group.key.name,
            kind="Gang",
            pods=len(shown.pods) or group.count,
            units=sum(map(self._standings.units_of, shown.pods or group.present())),
            priority=group.priority,
            since=group.created,
            waiting_seconds=self.age(group.created),
            reason=why.value,
            waits_for=f"{view.text} {more}".rstrip(),
            place=place,
            claim=self._claim_of(owner),
        )

    def _view_of(self, group: Group) -> GangView | None:
        uid = next(iter(group.members), "")
        return self._state.gangs.view_of(uid)

    def _why_gang(self, group: Group, view: GangView, place: int) -> Why | None:
        record, owner = self._gangs.known(group), str(group.key)
        if view.phase == Phase.WAITING_FOR_ROOM and not self._standings.can_group_start(group):
            return Why.INVALID
        if not place:
            if self._standings.is_resting(owner):
                return Why.RESTING
            return _OF_PHASES.get(view.phase)
        no_room = record.no_room if record is not None else None
        if no_room is not None and over_quota.is_over(no_room.reason):
            return _OF_LIMITS[LIMITS[no_room.reason.text]]
        return self._why(owner, gated=bool(group.gated), tried=no_room is not None, key=owner)

    def _pod(self, shown: WaitingPod, place: int) -> Generator[None, None, QueueEntry | None]:
        pod, meta = shown.pod, shown.pod.metadata
        over = self._over(pod)
        why = self._why_pod(shown, place, over)
        if why is Why.RESTING:
            said = f"{text.RESTING} {self.more(why, pod.uid)}"
        elif why is Why.OTHER_GATE:
            said = text.OTHER_GATE
        elif over is not None and why is _OF_LIMITS[Limit(over.limit)]:
            said = over_quota.sentence(over)
        elif why is Why.BEHIND_FIRST:
            said = text.behind(self._first_place)
        else:
            said = yield from self._sentence(pod)
            said = f"{said} {self.more(why, pod.uid)}".rstrip()
        return QueueEntry(
            namespace=meta.namespace,
            name=meta.name,
            kind="Pod",
            pods=1,
            units=self._standings.units_of(pod),
            priority=pod.priority,
            since=meta.creation_timestamp or "",
            waiting_seconds=self.age(meta.creation_timestamp or ""),
            reason=why.value,
            waits_for=_sentence(said),
            place=place,
            claim=self._claim_of(pod.uid),
        )

    def _why_pod(self, shown: WaitingPod, place: int, over: OverQuota | None) -> Why:
        pod = shown.pod
        if self._state.ledger.slot_of(pod.uid) is not None:
            return Why.STARTING
        if not place and pod.has_foreign_gate:
            return Why.OTHER_GATE
        if not place and self._standings.is_resting(pod.uid):
            return Why.RESTING
        if not place and not self._standings.can_start(pod):
            return Why.INVALID
        if over is not None:
            return _OF_LIMITS[Limit(over.limit)]
        is_tried = shown.kind in self._failed
        why = self._why(pod.uid, gated=pod.has_our_gate, tried=is_tried, key=shown.kind)
        is_full = why in _OF_ROOM and self._has_only_full_models(pod)
        return Why.OVER_MODEL_QUOTA if is_full else why

    def _why(self, owner: str, *, gated: bool, tried: bool, key: Hashable) -> Why:
        if gated and self._gangs.gates_stay:
            return Why.NO_RIGHT
        if self._claim_of(owner) is not None:
            return Why.CLAIMS
        if tried or key in self._failed:
            return Why.NO_ROOM
        return Why.BEHIND_FIRST if self._failed and not self._settings.backfill else Why.NOT_TRIED

    def _over(self, pod: Pod) -> OverQuota | None:
        try:
            return self._quotas.lacking.over_quota(pod, self._state.request_of(pod))
        except RequestError:
            return None

    def _has_only_full_models(self, pod: Pod) -> bool:
        """Return whether all GPUs are of models of which the namespace has too little left."""
        full = frozenset(self._quotas.lacking.full_models(pod, self._state.request_of(pod)))
        return bool(full) and self._state.namespace_use.nodes_with(full) >= set(
            self._state.ledger.nodes()
        )

    def _sentence(self, pod: Pod) -> Generator[None, None, str]:
        if self._sentences.has(pod) or self._sentences.cost < MOST_COST:
            return (yield from self._sentences.of(pod, self._only))
        return text.NO_ROOM


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"
