"""Find the one cause for which a pod is Pending, and what would help (pure).

``text.sentence`` writes the result for people: explain, the pod's Event, the live page and
inspect show the same sentence to callers with the same rights. What the extender does not judge,
such as volumes or affinity between pods, is left to kube-scheduler, whose message is part of the
result.
"""

from collections import Counter
from collections.abc import Collection, Generator, Iterable, Mapping
from operator import and_
from typing import Final, Protocol

from gpushare.annotations import pod_annotations
from gpushare.answers import preemptions
from gpushare.answers.gangs import GangStates, GangView
from gpushare.answers.pending.ends import Holders, find_ends
from gpushare.answers.pending.facts import (
    BINDING,
    CLOSED,
    EVICTING,
    EXCLUDED,
    FITS,
    ISOLATION,
    MODEL,
    NO_NODES,
    QUOTA,
    RESOURCES,
    ROOM,
    SCHEDULER,
    SETUP,
    SLOT,
    TOO_LARGE,
    TOO_LITTLE,
    TOO_MANY_CARDS,
    UNREADABLE,
    UUIDS,
    Free,
    Offer,
    Pending,
)
from gpushare.answers.pending.of_pod import gates, makes_room_on, state, without_memory
from gpushare.answers.pending.scheduler_message import (
    brief,
    message_of,
    not_judged,
    silent_scheduler,
)
from gpushare.answers.preemptions import PreemptionStates
from gpushare.answers.queue.entries import QueueStates
from gpushare.answers.queue.over_quota import OverQuota
from gpushare.cards.model import Request
from gpushare.contract import BY_DRIVER, RESOURCE_MEMORY
from gpushare.errors import RequestError
from gpushare.ledger.accounts import NodeAccount
from gpushare.ledger.holds import Slot
from gpushare.objects.model import Pod
from gpushare.objects.pod_requests import MILLI, Amounts, requests_of
from gpushare.placement import card_choice
from gpushare.placement.card_choice import FreeCards
from gpushare.placement.node_resources import every_of, insufficient, left_of
from gpushare.placement.rank import rank
from gpushare.placement.reasons import NO_CARDS, NO_ROOM, Reason
from gpushare.placement.room import NodeRoom
from gpushare.placement.rooms import Rooms, rooms_of
from gpushare.preemption.model import PreemptionWorld
from gpushare.quota.reasons import OVER_MODEL_QUOTA
from gpushare.text.listed import listed

_DEPEND_ON_AMOUNT: Final = frozenset({TOO_LARGE, TOO_MANY_CARDS, MODEL, UUIDS, ISOLATION})


class Known(Holders, PreemptionWorld, Protocol):
    """The cluster as the extender knows it."""

    @property
    def gangs(self) -> GangStates:
        """Return what is known about gangs; NO_GANGS without such knowledge."""

    @property
    def preemptions(self) -> PreemptionStates:
        """Return what is known about evictions; NO_PREEMPTIONS without such knowledge."""

    @property
    def queue(self) -> QueueStates:
        """Return what is known about the queue and quotas; NO_QUEUE without such knowledge."""

    def why_not(self, node: str, request: Request, pod: Pod) -> Reason | None:
        """Return why filter would reject a node now."""


def why_pending(
    known: Known, pod: Pod, rooms: Rooms | None = None, gang: GangView | None = None
) -> Generator[None, None, Pending]:
    """Return why an unbound pod is Pending, in short steps.

    ``rooms`` are those of the pod's kind if the caller has them: then 1,000 nodes with 8 full GPUs
    cost 10 to 70 ms, else 0.5 s. ``gang`` is that of the pod.
    """
    gates_stay = pod.waits_for_admission and known.gangs.gates_stay
    facts = known.preemptions.of(pod.uid) if pod.metadata.deletion_timestamp is None else None
    evicting = preemptions.view(facts) if facts is not None else None
    if not pod_annotations.asks_for_share(pod):
        found = without_memory(pod, gang, gates_stay=gates_stay)
        if evicting is not None:
            found.cause, found.evicting = EVICTING, evicting
        return found
    try:
        request = known.request_of(pod)
        search = _Search(known, pod, request)
    except RequestError as err:
        return Pending(UNREADABLE, text=str(err), gang=gang)
    found = search.found
    found.gang, found.gates_stay = gang, gates_stay
    if pod.metadata.deletion_timestamp is None and not known.queue.is_asked_about(pod):
        found.cause, found.scheduler = SCHEDULER, pod.spec.scheduler_name or ""
        return found
    is_reserved = known.ledger.has_reserve(pod.uid)  # a plan's slot is not a decision
    if is_reserved and any(each.pod_uid == pod.uid for each in known.ledger.reserves()):
        found.cause = BINDING
        return found
    if (slot := known.ledger.slot_of(pod.uid)) is not None:
        found.cause, found.text = SLOT, brief(message_of(pod))
        found.place = Free(found.needs_mib, slot.node, _indexes(known, slot))
        return found
    if evicting is not None:
        found.cause, found.evicting = EVICTING, evicting
        return found
    if rooms is None:
        rooms = yield from rooms_of(known, pod, request)
    yield from search.run(list(rooms.values()))
    if found.cause != FITS:  # else its text is the message
        found.not_judged = not_judged(message_of(pod))
    return found


class _Search:
    """Fills ``found``, cause by cause, the most lasting first."""

    def __init__(self, known: Known, pod: Pod, request: Request) -> None:
        self._known, self._pod, self._request = known, pod, request
        self._asked: Amounts = requests_of(pod)
        self._units = request.units_per_card
        self._rooms: list[NodeRoom] = []
        self.found = Pending(
            ROOM,
            needs_units=request.units_per_card,
            needs_mib=request.units_per_card * known.unit_mib,
            gpus=request.card_count,
            gates=gates(pod),
            nominated=makes_room_on(pod),
            scheduler=silent_scheduler(pod),
            held=pod.waits_for_admission,
        )

    def run(self, rooms: list[NodeRoom]) -> Generator[None, None, None]:
        self._rooms, found, units = rooms, self.found, self._units
        candidates = [room for room in rooms if room.is_candidate]
        found.cause = self._never() or state(self._pod)
        if found.cause:
            if found.cause in _DEPEND_ON_AMOUNT:
                yield from self._offer(candidates)
            return
        found.over_quota = self._known.queue.over_quota(self._pod, self._request)
        if found.over_quota is not None:
            found.cause = QUOTA
            return
        yield
        large = [room for room in candidates if room.size >= units]
        if not large:
            found.cause = EXCLUDED
            found.counts = _barred(r for r in rooms if r.size >= units or r.account is None)
            yield from self._offer(candidates)
            return
        full = self._known.queue.full_models(self._pod, self._request)
        closed = [_model_in(room.account, full) for room in large if room.account is not None]
        if closed and (model := closed[0]) is not None and all(closed):
            found.cause, found.over_quota = QUOTA, full[model]
            return
        fitting = [room for room in large if room.free >= units]
        if fitting:
            yield from self._fit(fitting, full)
            return
        found.barred = _barred(room for room in rooms if room.free >= units)
        yield from self._offer(candidates)
        opened = [room for room in large if room.size_open >= units]
        if not opened:
            found.cause, found.counts = CLOSED, self._closed(large)
            return
        found.cause, found.kept = ROOM, self._kept(opened)
        ends = yield from find_ends(self._known, self._pod, units, opened)
        found.ends, found.ends_count = ends.named, ends.count
        found.ends_together, found.ends_more = ends.together, ends.more

    def _never(self) -> str:
        """Return the cause if no node could take the pod even if it were empty and open."""
        found, request, units = self.found, self._request, self._units
        if not self._rooms:
            return NO_NODES
        unit = self._known.unit_mib
        readable = [room for room in self._rooms if room.every]
        if not readable:
            found.counts = dict(Counter((r.reason or NO_CARDS).text for r in self._rooms))
            return SETUP
        largest = max(entry.card.units for room in readable for entry in room.every)
        if units > largest:
            found.limit, found.can_split = largest * unit, self._can_split(readable)
            return TOO_LARGE
        most = max(len(room.every) for room in readable)
        if request.card_count > most:
            found.limit = most
            return TOO_MANY_CARDS
        if units > max(room.size_of_all for room in readable):
            return TOO_MANY_CARDS
        if units > (size := max(room.size for room in readable)):
            found.limit = size * unit
            if request.policy.needs_limit and (why := _why_unlimited(readable, request)):
                found.text = why
                return ISOLATION
            found.text = listed(sorted(request.policy.models))
            return MODEL if request.policy.models else UUIDS
        if all(room.reason is not None and room.closed is None for room in readable):
            found.counts = dict(Counter(r.reason.text for r in readable if r.reason is not None))
            return SETUP
        return ""

    def _can_split(self, rooms: Iterable[NodeRoom]) -> bool:
        """Return whether two GPUs of a node are large enough for a request for one."""
        request = self._request
        is_even = all(each.units % 2 == 0 for each in request.containers)
        if request.card_count != 1 or request.policy.names_cards or not is_even:
            return False
        half = self._units // 2
        return any(sum(each.card.units >= half for each in room.every) > 1 for room in rooms)

    def _closed(self, rooms: list[NodeRoom]) -> dict[str, int]:
        cards = [entry.card for room in rooms for entry in room.cards]
        cards = [card for card in cards if card.units >= self._units and not card.takes_new]
        return dict(Counter("cordoned" if card.is_healthy else "unhealthy" for card in cards))

    def _kept(self, rooms: Iterable[NodeRoom]) -> Free | None:
        """Return GPUs that have room for it apart from what is kept for other pods."""
        for room in rooms:
            unused = [e for e in room.open if e.card.units - e.used - e.unplaced >= self._units]
            if len(unused) >= room.count:
                indexes = [entry.card.index for entry in unused[: room.count]]
                return Free(self.found.needs_mib, room.name, indexes)
        return None

    def _fit(
        self, rooms: list[NodeRoom], full: Mapping[str, OverQuota]
    ) -> Generator[None, None, None]:
        """Find the node that the pod would get, or what else it lacks on those with room.

        ``full`` are the models of which the quota leaves too little.
        """
        found, known, request = self.found, self._known, self._request
        ranked = []
        for room in rooms:
            yield
            if room.account is None:
                continue
            left = room.left(known, self._pod)
            cards = FreeCards(room.account, left=left_of(left, every_of(known.node(room.name))))
            place = rank(cards, request, known.policies, room.name, scarcity=known.scarcity)
            if place is not None:
                ranked.append((place, room, room.account))
        lacks: Counter[str] = Counter()
        for _, room, account in sorted(ranked, key=lambda each: each[0]):
            yield
            missing = insufficient(room.left(known, self._pod), self._asked)
            reason = known.why_not(room.name, request, self._pod)
            chosen = card_choice.choose(account, request, known.policies.card)
            model = _model_in(account, full)
            if model is not None:
                lacks[OVER_MODEL_QUOTA.text] += 1
                found.over_quota = found.over_quota or full[model]
            elif missing:
                lacks[f"{TOO_LITTLE} {listed(missing)} is left"] += 1
            elif reason is not None or chosen is None:
                lacks[reason.text if reason is not None else NO_ROOM.text] += 1
            else:
                found.cause, found.over_quota = FITS, None
                found.place = Free(found.needs_mib, room.name, [card.index for card in chosen])
                found.text = brief(message_of(self._pod))
                found.behind_first = known.queue.is_behind_first(self._pod)
                return
        found.cause, found.counts = RESOURCES, dict(lacks)
        if lacks.keys() == {OVER_MODEL_QUOTA.text}:
            found.cause = QUOTA

    def _offer(self, rooms: list[NodeRoom]) -> Generator[None, None, None]:
        """Find the most that is free, and the largest request that would fit now."""
        found, known, count = self.found, self._known, self._request.card_count
        falling = sorted(rooms, key=lambda room: -room.free)
        if not falling:
            return
        first, unit, best = falling[0], known.unit_mib, 0
        is_limited = any(room.free_of_all > first.free for room in self._rooms)
        found.most_free = Free(0, "", [], limited=is_limited)
        if first.free:
            reserved = max(entry.reserved + entry.claimed for entry in first.best)
            indexes = [entry.card.index for entry in first.best]
            found.most_free = Free(
                first.free * unit, first.name, indexes, reserved * unit, is_limited
            )
        others = {name: amount for name, amount in self._asked.items() if name != RESOURCE_MEMORY}
        for room in falling:
            if room.free <= best:
                break
            yield
            left = room.left(known, self._pod)
            if not insufficient(left, others):
                most = left.get(RESOURCE_MEMORY, 0) // MILLI // count
                best = max(best, min(room.free, most))
        if best:
            containers = self._request.containers_with_units
            found.fits_if = Offer(best * count, best * unit, containers)


def _model_in(account: NodeAccount, models: Collection[str]) -> str | None:
    """Return the first of these models of which a node has a GPU."""
    return next((e.card.model for e in account.cards if e.card.model in models), None)


def _indexes(known: Known, slot: Slot) -> list[int]:
    account = known.ledger.account(slot.node)
    cards = account.inventory.cards if account is not None else ()
    return [card.index for card in cards if card.uuid in slot.cards]


def _barred(rooms: Iterable[NodeRoom]) -> dict[str, int]:
    """Count what keeps the pod from these nodes: kube-scheduler's first rule, or our reason."""
    found: Counter[str] = Counter()
    for room in rooms:
        if room.rules:
            found[room.rules[0]] += 1
        elif room.reason is not None:
            found[room.reason.text] += 1
    return dict(found)


def _why_unlimited(rooms: Iterable[NodeRoom], request: Request) -> str:
    """Return why the driver limits memory on too few GPUs for the pod; empty if on enough."""
    whys: Counter[str] = Counter()
    for room in rooms:
        able = [each.card.enforces == BY_DRIVER for each in room.every]
        large = [each.card.units >= request.units_per_card for each in room.every]
        if sum(map(and_, able, large)) >= request.card_count:
            return ""
        whys.update(each.card.why_not_more for each in room.every if each.card.why_not_more)
    return listed([why for why, _ in whys.most_common()]) or "no inventory states it"
