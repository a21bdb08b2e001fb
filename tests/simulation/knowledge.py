"""What one replica knew of pods and nodes at any moment, independent of its ledger."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from extender.watch.cluster import NodeHandler, PodHandler
from extender.watch.live_pods import PodUse
from gpushare.contract import ANNOTATION_CORDONED_CARDS, ANNOTATION_INVENTORY, LATE_BINDING
from gpushare.objects.model import Node, Pod

SAME_MOMENT: Final = 4e-6  # what rounding and the order within one moment may hide


@dataclass(frozen=True, slots=True)
class Decision:
    """Cards of a pod, and its units of each; empty if the cards are unknown."""

    node: str
    cards: tuple[str, ...]
    units: int


@dataclass(frozen=True, slots=True)
class Card:
    """A card by its node's annotations."""

    units: int
    takes_new: bool
    may_be_used: bool  # by a pod without a decision


Fact = Decision | dict[str, Card] | None


@dataclass
class View:
    """Pods with units by uid, and cards by node and UUID."""

    pods: dict[str, Decision] = field(default_factory=dict)
    nodes: dict[str, dict[str, Card]] = field(default_factory=dict)

    def learn(self, key: str, fact: Fact) -> None:
        if isinstance(fact, Decision):
            self.pods[key] = fact
        elif isinstance(fact, dict):
            self.nodes[key] = fact
        else:
            self.pods.pop(key, None)
            self.nodes.pop(key, None)

    def why_not(self, uid: str, wanted: Decision) -> str:
        """Return why the cards cannot be given to this pod; empty if they can."""
        cards = self.nodes.get(wanted.node, {})
        for uuid in wanted.cards:
            card = cards.get(uuid)
            if card is None or not card.takes_new:
                return f"{uuid} of {wanted.node} is {'ill or cordoned' if card else 'not there'}"
            held = sum(
                pod.units
                for other, pod in self.pods.items()
                if other != uid
                and pod.node == wanted.node
                and (
                    not cards.keys() >= set(pod.cards)
                    or (uuid in pod.cards if pod.cards else card.may_be_used)
                )
            )
            if held + wanted.units > card.units:
                return f"{uuid} of {wanted.node} has {card.units}, of which {held} are held"
        return ""


class Knowledge:
    """``decision_of`` returns the cards that a pod was given, by its Binding."""

    def __init__(
        self, now: Callable[[], float], decision_of: Callable[[Pod], Decision | None]
    ) -> None:
        self.now, self._decision_of = now, decision_of
        self._facts: list[tuple[float, str, Fact]] = []
        self._listing: list[tuple[float, float]] = []

    @property
    def facts(self) -> int:
        """Return how much the replica was told."""
        return len(self._facts)

    def why_not(self, at: float, uid: str, wanted: Decision) -> str:
        """Return why the replica must not decide so, by what it knew ``at`` that true time.

        News of the same moment may count or not. Nothing is judged while the replica takes in a
        list.
        """
        if any(began <= at <= ended + SAME_MOMENT for began, ended in self._listing):
            return ""
        view = View()
        is_same_moment = False
        for moment, key, fact in self._facts:
            if moment > at + SAME_MOMENT:
                break
            if moment >= at - SAME_MOMENT and not is_same_moment:
                is_same_moment = True
                if not view.why_not(uid, wanted):
                    return ""
            view.learn(key, fact)
            if is_same_moment and not view.why_not(uid, wanted):
                return ""
        return view.why_not(uid, wanted)

    def pods(self, handler: PodHandler) -> "Told":
        def fact_of(pod: Pod | PodUse) -> tuple[str, Fact]:
            return pod.uid, self._decision_of(pod) if isinstance(pod, Pod) else None

        return Told(handler, self, fact_of)

    def nodes(self, handler: NodeHandler) -> "Told":
        return Told(handler, self, lambda node: (node.name, cards_of(node.annotations)))

    def learn(self, key: str, fact: Fact) -> None:
        self._facts.append((self.now(), key, fact))

    def listed(self, began: float, facts: Mapping[str, Fact], before: Iterable[str]) -> None:
        for key in set(before) - facts.keys():
            self.learn(key, None)
        for key, fact in facts.items():
            self.learn(key, fact)
        self._listing.append((began, self.now()))


class Told:
    """Pass items from an informer to its handler, and note them."""

    def __init__(
        self,
        handler: PodHandler | NodeHandler,
        knowledge: Knowledge,
        fact_of: Callable[[Pod | Node], tuple[str, Fact]],
    ) -> None:
        self._handler, self._knowledge, self._fact_of = handler, knowledge, fact_of
        self._keys: set[str] = set()

    def replaced(self, items: list[Pod | Node]) -> Iterator[None]:
        began = self._knowledge.now()
        yield from self._handler.replaced(items)
        facts = dict(map(self._fact_of, items))
        self._knowledge.listed(began, facts, self._keys)
        self._keys = set(facts)

    def changed(self, item: Pod | Node) -> None:
        self._handler.changed(item)
        key, fact = self._fact_of(item)
        self._keys.add(key)
        self._knowledge.learn(key, fact)

    def deleted(self, item: Pod | Node) -> None:
        self._handler.deleted(item)
        key, _ = self._fact_of(item)
        self._keys.discard(key)
        self._knowledge.learn(key, None)


def cards_of(annotations: Mapping[str, str]) -> dict[str, Card]:
    """Return the cards of a node's annotations."""
    found = msgspec.json.decode(annotations[ANNOTATION_INVENTORY])
    cordoned = annotations.get(ANNOTATION_CORDONED_CARDS, "").split(",")
    return {
        card["uuid"]: Card(
            card["units"],
            card["health"] == "healthy" and card["uuid"] not in cordoned,
            found["binding"] != LATE_BINDING,
        )
        for card in found["cards"]
    }
