"""Find the first entries of the queue, and what each of them needs (pure)."""

from collections.abc import Generator, Iterable
from typing import Final

from extender.decisions.cluster_state import ClusterState
from extender.decisions.gangs.gangs import Gangs
from extender.decisions.gangs.plans import GangPlans
from extender.decisions.queue.waiting_pods import Kind
from gpushare.groups.group import Group
from gpushare.planning.ask import Ask
from gpushare.planning.eligibility import nodes_for
from gpushare.quota.order import Standing

MOST_HEADS: Final = 16

Entry = Group | Kind


class Heads:
    """Finds the first entries: no earlier one that waits could use any of the same nodes.

    Of equal priority the oldest is the first. The use of namespaces does not count: it changes from
    moment to moment, and no entry would be the first for long.
    """

    def __init__(self, state: ClusterState, gangs: Gangs) -> None:
        self._state, self._gangs, self._plans = state, gangs, GangPlans(gangs)

    def of(
        self, entries: Iterable[tuple[Standing, Entry]]
    ) -> Generator[None, None, tuple[list[tuple[Standing, Entry]], list[str]]]:
        """Return the first ones of these entries, in short steps.

        Return also the owners of those before them that no node may take, whatever is free.
        """
        found, nowhere = list[tuple[Standing, Entry]](), list[str]()
        taken, everywhere = set[str](), self._state.node_names()
        for standing, entry in sorted(entries, key=lambda each: each[0].age):
            yield
            if len(found) == MOST_HEADS or taken >= everywhere:
                break
            ask = self.ask(standing, entry)
            nodes = yield from nodes_for(self._state, ask.members if ask is not None else ())
            if ask is not None and not nodes:
                nowhere.append(standing.owner)
            elif nodes and taken.isdisjoint(nodes):
                found.append((standing, entry))
            taken |= nodes
        return found, nowhere

    def ask(self, standing: Standing, entry: Entry) -> Ask | None:
        """Return what an entry needs; None if nothing is missing any more."""
        if isinstance(entry, Group):
            return self._plans.ask(entry)
        pod = self._state.pod(standing.owner)
        if pod is None or pod.node or self._state.ledger.slot_of(pod.uid) is not None:
            return None
        return Ask(pod.uid, (pod,), 1, cooling=self._gangs.cooling())
