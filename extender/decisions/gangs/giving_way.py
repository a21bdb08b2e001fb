"""Let gangs that have not begun give way to more important pods (pure).

What is kept for a gang counts against less and equally important pods only, until its first member
is about to be bound. Whoever keeps or reserves such room for a more important pod calls this in the
same step, so that nobody is bound with the rest of a plan.
"""

from collections.abc import Iterable

from extender.decisions.gangs.gangs import Gangs
from gpushare.ledger.holds import Hold
from gpushare.objects.model import Pod


def binding_begins(gangs: Gangs, pod: Pod, node: str) -> None:
    """Take note that room on a node was reserved for a pod: its gang gives way to nobody now."""
    group = gangs.group_of(pod)
    if group is not None:
        gangs.state.ledger.make_firm(str(group.key))
    make_way(gangs, (node,), pod.priority)


def make_way(gangs: Gangs, nodes: Iterable[str], priority: int, owner: str = "") -> None:
    """Give up gangs whose room ``owner``, a pod or gang of this priority, has just got.

    The least important ones give way first, and only as many as have to. They are planned again
    after a while.
    """
    for node in nodes:
        for kept in _giving_way(gangs, node, priority, owner):
            if not _is_overfull(gangs, node):
                break
            group = gangs.state.groups.named(kept.owner)
            if group is None:
                gangs.state.ledger.drop(Hold, kept.owner)
            else:
                gangs.give_up(group)
                gangs.record(group).wait_longer(gangs.state.clock.monotonic())


def _giving_way(gangs: Gangs, node: str, priority: int, owner: str) -> list[Hold]:
    """Return what is kept on a node for less important ones, the least important one first."""
    found = {
        kept.owner: kept
        for kept, _ in gangs.state.ledger.slots_on(node)
        if isinstance(kept, Hold) and kept.priority < priority and kept.owner != owner
    }
    return sorted(found.values(), key=lambda kept: kept.priority)


def _is_overfull(gangs: Gangs, node: str) -> bool:
    state = gangs.state
    account, free = state.ledger.account(node), state.free_resources(node)
    if account is not None and any(card.overcommitted for card in account.cards):
        return True
    return free is not None and any(amount < 0 for amount in free.values())
