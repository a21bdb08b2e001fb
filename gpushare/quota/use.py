"""Sum up what the pods of each namespace use, from the ledger (pure).

A pod counts until it is gone, so while it is being deleted too, unless it hangs on a lost node.
What is reserved, held or claimed for a pod counts as if it were bound, once on each node: it may
still get any of these places.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from gpushare.ledger.ledger import Ledger


class _PodUse(NamedTuple):
    """What one pod uses of the GPUs of one model on a node."""

    pod_uid: str
    namespace: str
    model: str
    units: int


@dataclass(slots=True)
class _NodeUse:
    units: int = 0  # of all GPUs
    models: frozenset[str] = frozenset()
    used: Counter[tuple[str, str]] = field(default_factory=Counter)  # by namespace and model


def _nobody(_: str) -> Collection[str]:
    return ()


class NamespaceUse:
    """``namespace_of`` returns the namespace of a pod that has a slot; empty if it is gone.

    ``let_go`` returns the pods (uids) on a node that do not count, although their memory is in the
    ledger. If these become others, the node has to be among the ledger's changes. Reading costs
    what has changed in the ledger since the last time.
    """

    def __init__(
        self,
        ledger: Ledger,
        namespace_of: Callable[[str], str],
        let_go: Callable[[str], Collection[str]] = _nobody,
    ) -> None:
        self._ledger, self._namespace_of, self._let_go = ledger, namespace_of, let_go
        self._seen = -1
        self._stale: set[str] = set()  # nodes that have changed since they were read
        self._nodes: dict[str, _NodeUse] = {}
        self._used: dict[str, Counter[str]] = {}
        self._capacity = 0

    @property
    def capacity(self) -> int:
        """The units of all GPUs of the cluster."""
        self._renew()
        return self._capacity

    def namespaces(self) -> list[str]:
        """Return the namespaces whose pods use something."""
        self._renew()
        return [name for name, models in self._used.items() if models]

    def used(self, namespace: str, *, besides: Iterable[str] = ()) -> Counter[str]:
        """Return the units that a namespace uses, by model, without the pods ``besides`` (uids)."""
        self._renew()
        found = Counter(self._used.get(namespace, ()))
        for uid in besides:
            for each in self._of_pod(uid):
                found[each.model] -= each.units
        return found

    def models_of(self, node: str, cards: Iterable[str]) -> list[str]:
        """Return the model of each of these cards (UUIDs) of a node."""
        inventory = self._ledger.inventory(node)
        known = {} if inventory is None else {card.uuid: card.model for card in inventory.cards}
        return [known.get(uuid, "") for uuid in cards]

    def nodes_with(self, models: frozenset[str]) -> frozenset[str]:
        """Return the nodes that have a GPU of one of these models."""
        self._renew()
        return frozenset(name for name, node in self._nodes.items() if models & node.models)

    def _of_pod(self, uid: str) -> Iterator[_PodUse]:
        for node in self._ledger.reserved_on(uid):
            yield from (each for each in self._uses(node) if each.pod_uid == uid)

    def renewing(self) -> Iterator[None]:
        """Take in what has changed, node by node; other work may run between any two steps.

        Otherwise the next reader takes it in at once, which takes long after thousands of changes.
        """
        self._note_changes()
        while self._stale:
            self._renew_node(self._stale.pop())
            yield

    def _renew(self) -> None:
        for _ in self.renewing():
            pass

    def _note_changes(self) -> None:
        changes = self._ledger.changes
        if changes.now == self._seen:
            return
        changed = changes.since(self._seen) if self._seen >= 0 else None
        self._seen = changes.now
        everything = () if changed is not None else (*self._nodes, *self._ledger.all_nodes())
        self._stale.update(changed or everything)

    def _renew_node(self, name: str) -> None:
        before, now = self._nodes.pop(name, None) or _NodeUse(), _NodeUse()
        for _, namespace, model, units in self._uses(name):
            now.used[namespace, model] += units
        inventory = self._ledger.inventory(name)
        cards = inventory.cards if inventory is not None else ()
        now.units, now.models = sum(c.units for c in cards), frozenset(c.model for c in cards)
        if now.used or now.units:
            self._nodes[name] = now
        self._capacity += now.units - before.units
        if before.used == now.used:
            return
        for (namespace, model), units in now.used.items():
            self._used.setdefault(namespace, Counter())[model] += units
        for (namespace, model), units in before.used.items():
            models = self._used[namespace]
            models[model] -= units
            if not models[model]:
                del models[model]
            if not models:
                del self._used[namespace]

    def _uses(self, node: str) -> Iterator[_PodUse]:
        """Yield what each pod uses on a node, also where several kinds of entries show it."""
        ledger, counted = self._ledger, set(self._let_go(node))
        inventory = ledger.inventory(node)
        cards = inventory.cards if inventory is not None else ()
        models = {card.uuid: card.model for card in cards}
        first = cards[0].model if cards else ""
        for share in ledger.shares(node):
            if share.pod_uid in counted:
                continue
            counted.add(share.pod_uid)
            used = share.cards or ("",)  # an unplaced share counts once
            for uuid in used:
                yield _PodUse(share.pod_uid, share.namespace, models.get(uuid, first), share.units)
        for reserve in ledger.reserves(node):
            if reserve.pod_uid not in counted:
                counted.add(reserve.pod_uid)
                for uuid in reserve.cards:
                    yield _PodUse(
                        reserve.pod_uid, reserve.namespace, models.get(uuid, first), reserve.units
                    )
        for slot in ledger.pinned_slots_on(node):
            uid = slot.pod_uid
            if uid in counted or not (namespace := self._namespace_of(uid)):
                continue
            counted.add(uid)
            for uuid in slot.cards:
                yield _PodUse(uid, namespace, models.get(uuid, first), slot.units)
