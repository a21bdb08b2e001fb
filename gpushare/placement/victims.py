"""Judge whether evicting pods makes a pod fit on a node's cards, and find victims (pure).

kube-scheduler proposes victims by the totals of a node. This module decides, on an overlay of the
ledger, whether their units are on the cards that the pod needs.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from gpushare.cards.model import Card, Request, Share
from gpushare.ledger.accounts import CardAccount
from gpushare.ledger.ledger import Ledger
from gpushare.objects.model import Pod
from gpushare.placement import card_choice as cards
from gpushare.placement.card_choice import why_not_card
from gpushare.placement.reasons import Reason

LOWEST: Final = -(2**31)  # of all priorities


def why_not_without(
    ledger: Ledger,
    node: str,
    request: Request,
    victims: Iterable[str],
    *,
    unit_mib: int,
    pod_uid: str,
    priority: int,
) -> Reason | None:
    """Return why the pod would not fit on ``node`` without ``victims`` (uids); None if it would.

    Only the units of a victim in the ledger become free: an unknown uid, or one on another node,
    frees nothing. All other pods stay, including terminating ones.
    """
    trial = ledger.overlay()
    for uid in victims:
        trial.remove_share(uid)
    account = trial.account(node, besides=pod_uid, priority=priority)
    return cards.why_not(account, request, unit_mib)


@dataclass(frozen=True, slots=True)
class Victim:
    pod: Pod
    share: Share


@dataclass(frozen=True, slots=True)
class Eviction:
    """The ``victims`` to evict so that the pod gets ``cards`` (in index order) on ``node``."""

    node: str
    cards: tuple[Card, ...]
    victims: tuple[Victim, ...]

    @property
    def cost(self) -> tuple[int, int, int, str]:
        """Return what makes an eviction worse than another, the most important first."""
        highest = max((each.pod.priority for each in self.victims), default=LOWEST)
        units = sum(each.share.units for each in self.victims)
        return len(self.victims), highest, units, self.node


@dataclass(frozen=True, slots=True)
class _EmptiedCard:
    """A card, and the shares (``evicted``) to evict from it; ``cost`` sorts the best first."""

    cost: tuple[int, int, int, int]
    card: Card
    evicted: list[Share]


def find_eviction(
    ledger: Ledger,
    node: str,
    request: Request,
    pods: Iterable[Pod],
    *,
    unit_mib: int,
    priority: int,
) -> Eviction | None:
    """Find the fewest pods below ``priority`` to evict so that the pod fits on ``node``.

    On each card, take the pods with the most units first until enough units are free; as the last
    one, take the smallest that suffices. Choose the cards with the fewest victims, then the lowest
    priorities, the fewest units, the lowest index. Spare a victim if evicting another one, which
    uses several of these cards, frees enough. Return None if no eviction helps. Terminating pods
    still count as used, and pods on unknown cards are never victims.
    """
    shares = {share.pod_uid: share for share in ledger.shares(node) if not share.is_unplaced}
    lower = {pod.uid: pod for pod in pods if pod.priority < priority and pod.uid in shares}
    account = ledger.account(node, priority=priority)
    if account is None:
        return None
    found: list[_EmptiedCard] = []
    for entry in account.cards:
        here = [share for uid, share in shares.items() if uid in lower]
        here = [share for share in here if entry.card.uuid in share.cards]
        here.sort(key=lambda each: (-each.units, lower[each.pod_uid].priority, each.pod_key))
        evicted = _enough(entry, here, request.units_per_card)
        if evicted is None:
            continue
        units = sum(share.units for share in evicted)
        emptied = replace(entry, used=entry.used - units)
        if why_not_card(account, emptied, request, unit_mib) is None:
            highest = max((lower[share.pod_uid].priority for share in evicted), default=LOWEST)
            found.append(
                _EmptiedCard((len(evicted), highest, units, entry.card.index), entry.card, evicted)
            )
    if len(found) < request.card_count:
        return None
    chosen = sorted(found, key=lambda each: each.cost)[: request.card_count]
    cards_in_order = tuple(sorted((each.card for each in chosen), key=lambda card: card.index))
    uids = list(dict.fromkeys(share.pod_uid for each in chosen for share in each.evicted))
    # A pod on two of these cards may be a victim of one and already gone from the other.
    spare = {entry.card.uuid: entry.card.units - entry.committed for entry in account.cards}
    spare = {card.uuid: spare[card.uuid] - request.units_per_card for card in cards_in_order}
    for uid in uids:
        _add(spare, shares[uid], 1)
    for uid in sorted(uids, key=lambda uid: -lower[uid].priority):
        _add(spare, shares[uid], -1)
        if all(units >= 0 for units in spare.values()):
            uids.remove(uid)
        else:
            _add(spare, shares[uid], 1)
    return Eviction(node, cards_in_order, tuple(Victim(lower[uid], shares[uid]) for uid in uids))


def _add(units: dict[str, int], share: Share, times: int) -> None:
    for uuid in units.keys() & set(share.cards):
        units[uuid] += times * share.units


def _enough(entry: CardAccount, here: list[Share], wanted: int) -> list[Share] | None:
    """Return the shares to evict, most units first, so that ``wanted`` units are free."""
    missing = wanted - (entry.card.units - entry.committed)
    evicted: list[Share] = []
    for place, share in enumerate(here):
        if missing <= 0:
            break
        if share.units >= missing:
            # The last one: the smallest that suffices, and of equals the first by name.
            enough = [each for each in here[place:] if each.units >= missing]
            share = min(enough, key=lambda each: each.units)  # noqa: PLW2901
        evicted.append(share)
        missing -= share.units
    return evicted if missing <= 0 else None
