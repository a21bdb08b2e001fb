"""The nodes as they would be with the slots that were planned so far (pure)."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from operator import attrgetter

from msgspec.structs import replace

from gpushare.ledger.accounts import CardAccount, NodeAccount, beside_hold, summed
from gpushare.ledger.gone import NOBODY, Freed, Gone
from gpushare.ledger.holds import HOLD_PRIORITY, Claim, Hold, Kept, Slot, requests_kept
from gpushare.placement.card_choice import FreeCard, FreeCards
from gpushare.placement.node_resources import take
from gpushare.placement.rank import Rank
from gpushare.placement.trial import World
from gpushare.planning.capacity import by_resources, cards_for_one, members_on, rank_of
from gpushare.planning.shapes import Shape

_number = attrgetter("number")


class Besides:
    """The world without what holds and claims keep for the pods ``uids``.

    Pods that are ``gone`` do not count either, nor holds and claims below ``priority``; None counts
    all others. ``nodes`` are where these, these slots and these pods were when this was made.

    A claim and the pods that are evicted for it count once in a node's resources. A claim is for
    what others leave: it takes nothing of what is held for the pods, as in ``Ledger.account``.
    """

    def __init__(
        self,
        world: World,
        uids: Collection[str],
        priority: int | None,
        gone: Gone = NOBODY,
    ) -> None:
        self.world = world
        self._uids, self._priority, self._gone = uids, priority, gone
        ledger = world.ledger
        slots = (slot_of(uid) for uid in uids for slot_of in (ledger.slot_of, ledger.claim_slot_of))
        self._own = {slot.node for slot in slots if slot is not None}
        self.nodes = self._own.union(ledger.outranked(HOLD_PRIORITY), gone.nodes)
        self._known: dict[str, tuple[NodeAccount | None, Mapping[str, int] | None]] = {}

    def left(self, name: str) -> tuple[NodeAccount | None, Mapping[str, int] | None]:
        """Return a node's account and free resources as of the first call; None if unknown.

        Reserves count, even if the slot of their pod does not.
        """
        if name not in self.nodes:
            return self.world.ledger.account(name), self.world.free_resources(name)
        found = self._known.get(name)
        if found is None:
            found = self._known[name] = self.left_now(name)
        return found

    def left_now(self, name: str) -> tuple[NodeAccount | None, Mapping[str, int] | None]:
        """Return the same as of now."""
        world, priority = self.world, self._priority
        resources = world.free_resources(name, priority=priority)
        account = world.ledger.account(name, priority=priority)
        if resources is None:
            return account, None
        freed, own = self._gone.freed(name), _Own(self._slots(name) if name in self._own else [])
        claimed = self._claimed(name)
        twice = claimed & self._used_by_leaving(name) if claimed else claimed
        free = dict(resources)
        for amounts in (freed.amounts, own.amounts, twice):
            for resource in free.keys() & amounts.keys():
                free[resource] += amounts[resource]
        for resource in free.keys() & own.held.keys():
            unclaimed = free[resource] + claimed[resource] - twice[resource]
            free[resource] = max(free[resource], min(own.held[resource], unclaimed))
        return _without(account, own, freed), free

    def _claimed(self, name: str) -> Counter[str]:
        """Return what claims of others keep of a node."""
        ledger, priority = self.world.ledger, self._priority
        claimed = Counter[str]()
        for kept, slot in ledger.slots_on(name):
            if not isinstance(kept, Claim) or slot.pod_uid in self._uids:
                continue
            counts = priority is None or kept.priority >= priority
            if counts and ledger.slot_of(slot.pod_uid) is None:
                claimed.update(dict(requests_kept(Claim, slot)))
        return claimed

    def _used_by_leaving(self, name: str) -> Counter[str]:
        """Return what pods that leave a node still use of it."""
        used = Counter[str]()
        for uid, requests in self.world.leaving(name).items():
            if not self._gone.includes(name, uid):
                used.update(dict(requests))
        return used

    def _slots(self, name: str) -> list[tuple[Kept, Slot]]:
        """Return the slots that do not count. With a reserve of its pod, a slot is counted once."""
        ledger, priority = self.world.ledger, self._priority
        return [
            (kept, slot)
            for kept, slot in ledger.slots_on(name)
            if slot.pod_uid in self._uids
            and ledger.reserve_of(slot.pod_uid, name) is None
            and (priority is None or kept.priority >= priority)
        ]


class _Own:
    """What slots of one node count for in its account: units by card, and ``amounts``.

    ``held`` are the amounts of those in holds.

    Of a pod with slots in a hold and in a claim, the one in the claim counts for what it keeps
    beyond the other.
    """

    def __init__(self, slots: Collection[tuple[Kept, Slot]]) -> None:
        self.reserved: dict[str, int] = {}
        self.claimed: dict[str, int] = {}
        self.amounts: dict[str, int] = {}
        self.held: dict[str, int] = {}
        held = {slot.pod_uid: slot for kept, slot in slots if isinstance(kept, Hold)}
        for kept, slot in slots:
            units, before = self.reserved, None
            if isinstance(kept, Claim):
                units, before = self.claimed, held.get(slot.pod_uid)
            for uuid in slot.cards:
                known = before.units if before is not None and uuid in before.cards else 0
                units[uuid] = units.get(uuid, 0) + max(0, slot.units - known)
            for resource, amount in requests_kept(type(kept), slot) if before is None else ():
                self.amounts[resource] = self.amounts.get(resource, 0) + amount
                if isinstance(kept, Hold):
                    self.held[resource] = self.held.get(resource, 0) + amount


def _without(account: NodeAccount | None, own: _Own, freed: Freed) -> NodeAccount | None:
    """Return the account without these slots and pods."""
    if account is None:
        return None
    return summed(account.inventory, [_card_without(each, own, freed) for each in account.cards])


def _card_without(card: CardAccount, own: _Own, freed: Freed) -> CardAccount:
    uuid = card.card.uuid
    held = own.reserved.get(uuid, 0)
    left = replace(
        card,
        used=max(0, card.used - freed.units.get(uuid, 0)),
        unplaced=max(0, card.unplaced - freed.unplaced),
        reserved=max(0, card.reserved - held),
        claimed=max(0, card.claimed - own.claimed.get(uuid, 0)),
    )
    return beside_hold(left, held)


class DraftNode:
    """What is left of one node.

    ``is_taken``: a member that keeps others like it apart was planned here.
    """

    __slots__ = ("_counted", "_takes", "cards", "free", "is_taken")

    def __init__(self, account: NodeAccount | None, free: Mapping[str, int] | None) -> None:
        self.free = dict(free) if free is not None else None
        self.cards = FreeCards(account) if account is not None else None
        self.is_taken = False
        self._counted: Shape | None = None  # ``_takes`` are of this shape
        self._takes = 0

    def takes(self, shape: Shape) -> int:
        """Return how many more members fit if the node is eligible for them."""
        if self.is_taken and shape.need.is_apart:
            return 0
        if self._counted is not shape:
            self._takes = members_on(shape, self.cards, self.free) if self.free is not None else 0
            self._counted = shape
        return self._takes

    def use(self, shape: Shape, chosen: Collection[FreeCard], takes: int | None) -> None:
        """Use what one member takes. ``takes``: how many more fit then, if that is known."""
        self._counted, self._takes = (None, 0) if takes is None else (shape, takes)
        self.is_taken |= shape.need.is_apart
        if self.cards is not None:
            for each in chosen:
                self.cards.use(each, shape.need.units)
        if self.free is not None:
            take(self.free, shape.amounts)


class Draft:
    """``nodes`` are those that were opened: they may differ from the nodes as they are."""

    def __init__(self, besides: Besides) -> None:
        self._besides, self._policies = besides, besides.world.policies
        self.nodes: dict[str, DraftNode] = {}

    def open(self, name: str) -> DraftNode:
        """Return what is left of a node. It is read once, so later changes are not noticed."""
        found = self.nodes.get(name)
        if found is None:
            found = self.nodes[name] = DraftNode(*self._besides.left(name))
        return found

    def take(self, shape: Shape, name: str) -> Slot | None:
        """Plan a slot for one member on an eligible node; None if there is too little left.

        As many other members of its shape fit after it as with any other choice of cards.
        """
        node = self.open(name)
        left = node.takes(shape) - 1
        if left < 0:
            return None
        chosen: Sequence[FreeCard] = ()
        if shape.request is not None and node.cards is not None:
            chosen = cards_for_one(shape.request, node.cards, self._policies.card, left)
        node.use(shape, chosen, left)
        return _slot(shape, name, chosen)

    def take_cards(self, shape: Shape, name: str, numbers: Collection[int]) -> Slot | None:
        """Plan a slot on these cards of an eligible node, which must have enough left.

        None if the other resources are not enough.
        """
        node = self.open(name)
        if node.free is None or not by_resources(node.free, shape.amounts):
            return None
        places = node.cards.places if node.cards is not None else ()
        chosen = [each for each in places if each.number in numbers]
        node.use(shape, chosen, None)
        return _slot(shape, name, chosen)

    def rank(self, shape: Shape, name: str) -> Rank | None:
        """Return the rank of an eligible node as it is left; None if no member fits."""
        node = self.open(name)
        takes = node.takes(shape)
        return rank_of(self._policies, shape, node.cards, takes, name) if takes else None


def _slot(shape: Shape, name: str, chosen: Sequence[FreeCard]) -> Slot:
    in_order = chosen if len(chosen) == 1 else sorted(chosen, key=_number)
    uuids = tuple([each.card.uuid for each in in_order])
    return Slot(name, uuids, shape.need.units, requests=shape.amounts)


class Fit:
    """``slots`` are those of each group, planned in ``draft``."""

    def __init__(self, draft: Draft, groups: int) -> None:
        self.draft = draft
        self.slots: list[list[Slot]] = [[] for _ in range(groups)]

    @property
    def members(self) -> int:
        return sum(map(len, self.slots))
