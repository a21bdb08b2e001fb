"""Claims GPUs for the first entries of the queue once they have waited for too long."""

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from extender.decisions.gangs.gangs import Gangs
from extender.decisions.gangs.giving_way import make_way_for_claim
from extender.decisions.queue.head_claims import HeadClaim
from extender.decisions.queue.heads import Entry, Heads
from extender.decisions.queue.waiting_pods import WaitingPods
from extender.gangs.planning import GangPlanning
from extender.settings.configuration import QueueSettings
from gpushare.groups.group import Group
from gpushare.ledger.gone import Gone
from gpushare.ledger.holds import Claim
from gpushare.placement.reasons import Reason
from gpushare.planning.ask import Ask, NoPlan
from gpushare.planning.work import Seen, changed_of, seen_now
from gpushare.preemption.model import Preemption, Rules
from gpushare.preemption.search import VictimSearch
from gpushare.quota.order import Standing

log = logging.getLogger(__name__)

EVERY_SECONDS: Final = 2.0
TRIED_AFTER_SECONDS: Final = 10.0  # most first entries are placed, or passed by others, before
TRIED_AT_ONCE: Final = 8
MOST_TIMES: Final = 48  # a day with the default of half an hour
TIMES_CLAIMED: Final = 4  # as long others come first where claimed room was not used
UNUSED_SECONDS: Final = 60.0  # in which a round tries the owner of a claim
FIT_SECONDS: Final = 60.0  # until it is tried again whether a first entry would still fit
FIRST_HOPELESS_SECONDS: Final = 60.0
MOST_HOPELESS_SECONDS: Final = 600.0
# The pods whose end is waited for are chosen as victims are: as few and as unimportant as possible.
_RULES: Final = Rules(any_priority=True)


@dataclass
class _Patience:
    """For how many seconds a claim waits for one of ``left`` pods to end before it moves.

    ``spared`` are the uids of pods for which it has waited and which have not ended. ``seen`` is
    the state of its nodes when its slots were last found to be usable.
    """

    seconds: float
    until: float
    left: int
    spared: frozenset[str]
    seen: Seen | None = None


class HeadClaiming:
    """The plan of a round uses the room itself once it is free: then the claim is dropped.

    An entry that would not fit even if all pods ended is passed over until that changes: others
    must not wait for their claims because of it. It is tried again now and then.

    The pods that use what is claimed may run for ever. If none of them ends for as long as the
    entry had to be the first, the claim moves to where others run, and waits twice as long there.
    It moves as well if a plan could not use it any more, were these pods gone.

    A claim ends after MOST_TIMES as long as an entry has to be the first, and soon if all that it
    waited for is free and its owner has not used it: the owner is passed over for a while. One that
    had room and did not come to it has to be the first for longer.

    Without ``reserve_after_seconds``, 0, it only notes for how long entries have been the first,
    and who is to be passed over.
    """

    def __init__(
        self, gangs: Gangs, planning: GangPlanning, pods: WaitingPods, settings: QueueSettings
    ) -> None:
        self._state, self._planning = gangs.state, planning
        self._gangs, self._pods = gangs, pods
        self._after, self._backfill = settings.reserve_after_seconds, settings.backfill
        self._claims, self._heads = gangs.state.head_claims, Heads(gangs.state, gangs)
        self._search = VictimSearch(gangs.state)
        self._first_since: dict[str, float] = {}  # by owner
        self._fit: dict[str, float] = {}  # by owner, when there would have been room for it
        self._passed: dict[str, tuple[float, float]] = {}  # by owner, until when, and how long
        self._need_nodes: set[str] = set()  # owners
        self._patience: dict[str, _Patience] = {}  # of claims, by owner
        self._claimed: dict[str, float] = {}  # by owner, how long its former claims have lasted
        self._oldest: tuple[str, float] = "", 0.0  # of all without room, and since when
        self._checked_at = -EVERY_SECONDS

    @property
    def first_seconds(self) -> float:
        """Return for how long an entry has been the first one without room; of several the longest.

        What an autoscaler has to add a node for does not count. Return 0 without any.
        """
        now, (oldest, since) = self._state.clock.monotonic(), self._oldest
        first_since = [*self._first_since.values(), *([since] if oldest else [])]
        return now - min(first_since, default=now)

    def is_passed_over(self, owner: str) -> bool:
        """Return whether others need not wait for an entry because it could not use their room."""
        return owner in self._passed or owner in self._need_nodes

    async def check(self, without_room: Collection[tuple[Standing, Entry]]) -> None:
        """Claim for those that have been first for long enough, and drop what is not needed.

        ``without_room`` are the entries without room.
        """
        now = self._state.clock.monotonic()
        waiting = {standing.owner: entry for standing, entry in without_room}
        for claim in self._claims:
            owner = claim.standing.owner
            if owner not in waiting or self._claims.get(owner) is None:
                self._drop(owner)
        self._claimed = {each: at for each, at in self._claimed.items() if self._exists(each)}
        self._need_nodes = await self._planning.slices.run(self._pods.needing_nodes(without_room))
        ages = (each.age for each, _ in without_room if each.owner not in self._need_nodes)
        *_, oldest = min(ages, default=("",))
        if oldest != self._oldest[0]:
            self._oldest = oldest, now
        if now - self._checked_at < EVERY_SECONDS and not self._is_due(now):
            return
        self._checked_at = now
        before = dict([self._oldest]) | self._first_since
        heads = await self._hopeful(without_room, before, now)
        self._first_since = {head.owner: before.get(head.owner, now) for head, _ in heads}
        self._fit = {each: at for each, at in self._fit.items() if each in self._first_since}
        for standing, entry in heads if self._after else ():
            if now - self._first_since[standing.owner] >= self._due_after(standing.owner, entry):
                await self._claim(standing, entry)
        for claim in self._claims:  # also those that a more urgent entry has overtaken
            await self._renew(claim, waiting[claim.standing.owner])

    async def _renew(self, claim: HeadClaim, entry: Entry) -> None:
        """Check a claim: it ends or moves if it is of no use."""
        now, patience = self._state.clock.monotonic(), self._patience[claim.standing.owner]
        is_useless = self._is_useless(claim, now)
        lasted = self._lasted(claim)
        if lasted >= MOST_TIMES * self._after or (is_useless and not patience.left):
            log.warning("a claim of GPUs has helped nobody", extra={"owner": claim.standing.owner})
            self._drop(claim.standing.owner)
            self._pass_over(claim.standing.owner, max(self._after, lasted))
        elif not await self._is_usable(claim, entry):
            await self._claim(claim.standing, entry)
        elif is_useless:
            await self._move(claim, entry, now)

    def _exists(self, owner: str) -> bool:
        """Return whether a pod, by its uid, or a gang still waits, or may wait again."""
        state = self._state
        return owner in self._pods or state.groups.named(owner) is not None

    def drop_all(self) -> None:
        """Drop all claims: nothing can be placed there in the order of the queue now."""
        for claim in self._claims:
            self._drop(claim.standing.owner)

    def _drop(self, owner: str) -> None:
        lasted = sum(self._lasted(each) for each in self._claims if each.standing.owner == owner)
        self._claimed[owner] = self._claimed.get(owner, 0.0) + lasted
        self._claims.drop(owner)
        self._patience.pop(owner, None)

    async def _hopeful(
        self,
        without_room: Collection[tuple[Standing, Entry]],
        first_since: Mapping[str, float],
        now: float,
    ) -> list[tuple[Standing, Entry]]:
        """Return the first entries of those for which there would be room if pods ended."""
        owners = {standing.owner: (standing, entry) for standing, entry in without_room}
        self._passed = {each: at for each, at in self._passed.items() if each in owners}
        due = [owners[each] for each, (until, _) in self._passed.items() if until <= now]
        await self._try(due[:TRIED_AT_ONCE])
        heads = await self._first(without_room)
        since = now - min(TRIED_AFTER_SECONDS, self._after or TRIED_AFTER_SECONDS)
        news = [each for each in heads if first_since.get(each[0].owner, now) <= since]
        left = TRIED_AT_ONCE if self._after or not self._backfill else 0
        while news := [each for each in news if not self._is_fit(each[0].owner, now)][:left]:
            left -= len(news)
            if await self._try(news):
                break
            # What comes first now has waited behind those that do not fit.
            news = heads = await self._first(without_room)
        return heads

    def _is_fit(self, owner: str, now: float) -> bool:
        """Return whether pods would leave room for a first entry, as of a minute ago."""
        return now - self._fit.get(owner, -inf) < FIT_SECONDS

    async def _first(
        self, without_room: Collection[tuple[Standing, Entry]]
    ) -> list[tuple[Standing, Entry]]:
        hopeful = [each for each in without_room if not self.is_passed_over(each[0].owner)]
        heads, nowhere = await self._planning.slices.run(self._heads.of(hopeful))
        for owner in nowhere:
            self._give_up(owner)
        return heads

    async def _try(self, entries: Iterable[tuple[Standing, Entry]]) -> bool:
        """Note which entries would fit if pods ended; return whether all would."""
        are_fit = True
        for standing, entry in entries:
            ask = self._heads.ask(standing, entry)
            if ask is None or await self._searched(ask) is not None:
                self._fit[standing.owner] = self._state.clock.monotonic()
                self._passed.pop(standing.owner, None)
            else:
                self._give_up(standing.owner)
                are_fit = False
        return are_fit

    def _give_up(self, owner: str) -> None:
        _, before = self._passed.get(owner, (0.0, 0.0))
        self._pass_over(owner, min(MOST_HOPELESS_SECONDS, before * 2 or FIRST_HOPELESS_SECONDS))

    def _pass_over(self, owner: str, seconds: float) -> None:
        self._passed[owner] = self._state.clock.monotonic() + seconds, seconds
        self._fit.pop(owner, None)

    def _is_due(self, now: float) -> bool:
        """Return whether an entry has been the first for long enough since the last check."""
        due_at = (since + self._after for since in self._first_since.values())
        return any(self._checked_at < at <= now for at in due_at)

    def _due_after(self, owner: str, entry: Entry) -> float:
        """Return for how long an entry has to be the first.

        One that did not use its room waits for several times as long as GPUs were claimed for it.
        """
        if isinstance(entry, Group):
            unused = self._gangs.record(entry).unused
        else:
            unused = self._pods.unused(owner)
        claimed = self._claimed.get(owner, 0.0) if unused else 0.0
        return self._after * (1 + unused) + TIMES_CLAIMED * claimed

    def _lasted(self, claim: HeadClaim) -> float:
        return self._state.clock.monotonic() - claim.since

    async def _claim(self, standing: Standing, entry: Entry) -> None:
        """Claim what an entry needs, unless a usable claim has all of it."""
        before, ask = self._claims.get(standing.owner), self._heads.ask(standing, entry)
        if ask is None:
            return
        if before is not None and await self._is_usable(before, entry):
            kept = {slot.pod_uid for slot in before.slots}
            if sum(pod.uid in kept for pod in ask.members) >= ask.least:
                return
        if self._state.preemptions.of(ask.members[0].uid) is not None:
            return  # pods are evicted for it
        found = await self._searched(ask)
        if found is not None:
            self._put(standing, found, self._after)
            return
        if before is not None:
            self._drop(standing.owner)
        self._give_up(standing.owner)

    def _is_useless(self, claim: HeadClaim, now: float) -> bool:
        """Return whether none of the pods that use what is claimed has ended for too long.

        If none is left, return whether the owner has not used the room for too long.
        """
        patience = self._patience[claim.standing.owner]
        left = len(self._users(claim))
        if left < patience.left:
            seconds = patience.seconds if left else UNUSED_SECONDS
            patience.left, patience.until = left, now + seconds
        return now >= patience.until

    async def _is_usable(self, claim: HeadClaim, entry: Entry) -> bool:
        """Return whether a plan could use what is claimed, were the pods gone that it waits for."""
        patience = self._patience[claim.standing.owner]
        nodes = {slot.node for slot in claim.slots}
        seen = seen_now(self._state)
        if patience.seen is not None and not changed_of(self._state, patience.seen, nodes):
            return True
        ask = self._heads.ask(claim.standing, entry)
        if ask is None:
            return True
        users = dict[str, set[str]]()
        for uid in self._users(claim):
            users.setdefault(self._state.use.node_of(uid), set()).add(uid)
        gone = Gone(self._state.ledger, self._state.requests_used, users)
        pods = {pod.uid: pod for pod in ask.members}
        slots = [slot for slot in claim.slots if slot.pod_uid in pods]
        steps = self._planning.planner.are_usable(slots, pods, gone=gone)
        is_usable = await self._planning.slices.run(steps)
        patience.seen = seen if is_usable else None
        return is_usable

    async def _move(self, claim: HeadClaim, entry: Entry, now: float) -> None:
        """Claim what other pods use, if the entry would fit there."""
        owner, ask = claim.standing.owner, self._heads.ask(claim.standing, entry)
        before = self._patience[owner]
        spared = before.spared | self._users(claim)
        found = await self._searched(ask, spared) if ask is not None else None
        if found is not None:
            self._put(claim.standing, found, 2 * before.seconds, spared)
        else:  # it has waited for all that there are
            before.spared, before.until = frozenset(), now + before.seconds

    def _users(self, claim: HeadClaim) -> frozenset[str]:
        """Return the pods of which the claim waits for the end."""
        return frozenset(uid for uid in claim.waits_for if self._state.use.node_of(uid))

    def _put(
        self,
        standing: Standing,
        found: Preemption,
        seconds: float,
        spared: frozenset[str] = frozenset(),
    ) -> None:
        now, before = self._state.clock.monotonic(), self._claims.get(standing.owner)
        if before is None and self._state.ledger.claim_of(standing.owner) is not None:
            return  # pods are evicted for it since the search began
        waits_for = frozenset(pod.uid for pod in found.victims)
        since = before.since if before is not None else now
        slots, priority = found.plan.slots, standing.priority
        self._claims.put(HeadClaim(standing, slots, waits_for, since))
        make_way_for_claim(self._gangs, Claim(standing.owner, slots, inf, priority))
        until = now + (seconds if waits_for else UNUSED_SECONDS)
        patience = _Patience(seconds, until, len(waits_for), spared)
        self._patience[standing.owner] = patience
        log.info(
            "GPUs claimed for the first that waits",
            extra={
                "owner": standing.owner,
                "slots": len(found.plan.slots),
                "used_by": len(waits_for),
            },
        )

    async def _searched(self, ask: Ask, spared: frozenset[str] = frozenset()) -> Preemption | None:
        """Return where an entry would fit if pods ended that are not spared.

        Nothing runs after the search.
        """
        limited = self._state.quotas.limited(ask)
        if isinstance(limited, Reason):
            return None
        rules = replace(_RULES, spared=spared)
        found = await self._planning.slices.run(self._search.find(limited, rules))
        if isinstance(found, NoPlan) or self._state.quotas.exceeding(ask, found.plan.slots):
            return None
        return found
