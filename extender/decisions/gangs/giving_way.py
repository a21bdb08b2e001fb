"""Let gangs that have not begun give way to more important pods (pure).

The room of a gang counts against less and equally important pods only, until its first member is
about to be bound. Code that keeps or reserves such room for a more important pod calls this in the
same step, so that nobody is bound with the rest of a plan.
"""

from collections.abc import Iterable

from extender.decisions.gangs.gangs import Gangs
from extender.decisions.gangs.record import FIRST_WAIT_SECONDS
from gpushare.ledger.holds import Claim, Hold
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
            _give_up(gangs, kept)


def make_way_for_claim(gangs: Gangs, claim: Claim) -> None:
    """Give up gangs whose GPUs are claimed for a more important pod or gang."""
    for slot in claim.slots:
        for kept in _giving_way(gangs, slot.node, claim.priority, claim.owner):
            here = (each for each in kept.slots if each.node == slot.node)
            if any(not set(slot.cards).isdisjoint(each.cards) for each in here):
                _give_up(gangs, kept)


def _give_up(gangs: Gangs, kept: Hold) -> None:
    group, now = gangs.state.groups.named(kept.owner), gangs.state.clock.monotonic()
    if group is None:
        gangs.state.ledger.drop(Hold, kept.owner)
        return
    gangs.give_up(group)
    gangs.record(group).wait_until = now + FIRST_WAIT_SECONDS  # it may have come to its room


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
    cards = account.cards if account is not None else ()
    if any(each.used + each.unplaced + each.reserved > each.card.units for each in cards):
        return True
    return free is not None and any(amount < 0 for amount in free.values())
