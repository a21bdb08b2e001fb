"""The groups and nodes of an area as numbers, for a search (pure)."""

from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from operator import mul
from typing import Final

from gpushare.placement.card_choice import FreeCard, is_wanted
from gpushare.placement.node_resources import free_of
from gpushare.planning.areas import Candidates
from gpushare.planning.draft import Draft
from gpushare.planning.first_fit import largest_first
from gpushare.planning.search.node_states import Kind, LeftCard, LeftNode

NODES_A_STEP: Final = 16


@dataclass(slots=True)
class ProblemNode:
    """``cards`` are by index what the node has left of its cards, as in LeftNode."""

    name: str
    mask: int
    cards: dict[int, LeftCard]
    free: tuple[int, ...]

    @property
    def state(self) -> LeftNode:
        return self.mask, tuple(sorted(self.cards.values())), self.free


class Problem:
    """``kinds`` are the groups with members to place, as many as ``counts``.

    ``groups`` are their numbers. The last kind is the one with most members, the others are in the
    order of first fit.
    """

    def __init__(self, candidates: Sequence[Candidates], wanted: Sequence[int]) -> None:
        order = [group for group in largest_first(candidates) if wanted[group]]
        most = max(order, key=lambda group: wanted[group], default=0)
        self.groups = [*(group for group in order if group != most), most]
        self.here = [candidates[group] for group in self.groups]
        self.counts = [wanted[group] for group in self.groups]
        self._needs = [each.group.shape.need for each in self.here]
        self._resources = sorted({name for need in self._needs for name, _ in need.requests})
        self.kinds = [
            Kind(
                need.units,
                need.card_count,
                (*(dict(need.requests).get(name, 0) for name in self._resources), need.is_apart),
            )
            for need in self._needs
        ]
        self._totals = {
            name: sum(map(mul, (kind.amounts[n] for kind in self.kinds), self.counts))
            for n, name in enumerate(self._resources)
        }
        policies = [
            (number, request.policy)
            for number, here in enumerate(self.here)
            if (request := here.group.shape.request) is not None
        ]
        self._choosy = [each for each in policies if each[1].names_cards]
        self._any_card = sum(1 << n for n, policy in policies if not policy.names_cards)
        self.nodes: list[ProblemNode] = []

    def read(self, draft: Draft) -> Generator[None, None, None]:
        """Find the nodes that have room for any member beside what is planned already."""
        least = min((kind.units for kind in self.kinds if kind.card_count), default=0)
        names: dict[str, None] = {}
        for here in self.here:
            yield
            names |= dict.fromkeys([rank[3] for rank in here.ranks])
        for number, name in enumerate(names):
            if number % NODES_A_STEP == 0:
                yield
            node = draft.open(name)
            if node.free is None:
                continue
            mask = sum(1 << kind for kind, here in enumerate(self.here) if name in here.takes)
            # More than all members together need is as good as what they need. Where claims or pods
            # take more than there is, nothing is left.
            free = [
                max(0, min(free_of(node.free, resource), total))
                for resource, total in self._totals.items()
            ]
            free.append(not node.is_taken)  # by a member that is apart
            cards: dict[int, LeftCard] = {}
            for place in node.cards.places if node.cards is not None else ():
                may = self._who_may(mask, place)
                if may and place.free >= least:
                    cards[place.number] = place.free, may
            self.nodes.append(ProblemNode(name, mask, cards, tuple(free)))

    def lacks_resources(self) -> bool:
        """Return whether a resource other than cards is too little on all nodes together."""
        amounts = [kind.amounts for kind in self.kinds]
        return any(
            sum(map(mul, each, self.counts)) > sum(node.free[n] for node in self.nodes)
            for n, each in enumerate(zip(*amounts, strict=True))
        )

    def slack(self, free: Mapping[str, int] | None) -> float:
        """Return for how many average members the resources other than cards are enough."""
        if free is None:
            return 0.0
        return min(
            (free_of(free, name) / total for name, total in self._totals.items() if total),
            default=0.0,
        ) * sum(self.counts)

    def bins(self) -> Counter[int]:
        """Return the number of cards by what they have free."""
        return Counter(free for node in self.nodes for free, _ in node.cards.values())

    def sizes(self) -> dict[int, int]:
        """Return how many cards are needed in all, by the units of each; the largest first."""
        found: dict[int, int] = {}
        for kind, count in zip(self.kinds, self.counts, strict=True):
            if kind.card_count and count:
                found[kind.units] = found.get(kind.units, 0) + count * kind.card_count
        return dict(sorted(found.items(), reverse=True))

    def is_only_cards(self) -> bool:
        """Return whether members that fit on cards may differ only in their units.

        That is, each member with GPU memory uses one card and may use any.
        """
        with_cards = [n for n, kind in enumerate(self.kinds) if kind.card_count and self.counts[n]]
        every = sum(1 << kind for kind in with_cards)
        return all(self.kinds[kind].card_count == 1 for kind in with_cards) and all(
            may & every == every for node in self.nodes for _, may in node.cards.values()
        )

    def _who_may(self, mask: int, place: FreeCard) -> int:
        """Return the kinds that may use a card, as bits."""
        found = mask & self._any_card
        for number, policy in self._choosy:
            if mask >> number & 1 and is_wanted(place.card, policy):
                found |= 1 << number
        return found
