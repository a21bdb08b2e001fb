"""Write with Bindings whether a gang is whole, and read it as a new leader (pure).

Once a gang was whole, nobody is evicted because members are missing. Of two leaders, only what the
first one wrote tells the second one so.
"""

from typing import Final

from extender.decisions.gangs.gangs import Gangs
from gpushare.annotations.pod_annotations import asks_for_share
from gpushare.contract import ANNOTATION_GANG, GANG_COMPLETING, GANG_STARTING, GANG_WHOLE
from gpushare.groups.group import Group
from gpushare.objects.model import Pod

OLD_TIMES: Final = 48  # as old as its time, 4 hours by default: no extender is away for that long


def annotations_for(gangs: Gangs, pod: Pod) -> dict[str, str]:
    """Return what the Binding of a pod says about its gang; nothing for a pod without one.

    The pod has a reserve already. Of the last members that are being bound, either may land last,
    and none if the leader dies.
    """
    group = gangs.group_of(pod)
    if group is None:
        return {}
    record = gangs.record(group)
    missing = group.minimum - group.bound - record.ended
    landing = sum(not each.node and bool(gangs.reserved_on(each)) for each in group.present())
    if record.is_whole or missing <= 1:
        return {ANNOTATION_GANG: GANG_WHOLE}
    return {ANNOTATION_GANG: GANG_COMPLETING if missing <= landing else GANG_STARTING}


def take_over(gangs: Gangs, group: Group, age: float, *, has_lost: bool = False) -> None:
    """Note that the first member was bound ``age`` seconds ago, before this replica decided.

    If no Binding says that the gang has been whole, its time goes on. The member whose Binding said
    so may be lost, and nobody who has worked for long is evicted by mistake. So a gang counts as
    whole if its time is over and it ``has_lost`` members since it began, or a release has bound it
    that wrote nothing with Bindings, or if it is OLD_TIMES as old: a leader would have undone it.
    Before that, the minimum of one that has lost members is planned at one time, and if a Binding
    was completing it, the gang is not undone at the end. The time of one that a Binding was
    completing begins again.
    """
    if not gangs.is_current(group):
        return
    record = gangs.record(group)
    bound = [pod for pod in group.present() if pod.node and asks_for_share(pod)]
    said = {pod.annotations.get(ANNOTATION_GANG) for pod in bound}
    is_over = age >= gangs.complete_seconds(group)
    is_completing = GANG_COMPLETING in said
    has_worked = is_over and (has_lost or None in said)
    has_worked |= age >= OLD_TIMES * gangs.complete_seconds(group)
    record.may_have_worked = is_completing and has_lost
    if GANG_WHOLE in said or has_worked:
        gangs.become_whole(record)
    elif record.begun_at is not None and not (is_over and is_completing):
        record.begun_at = min(record.begun_at, gangs.state.clock.monotonic() - age)
