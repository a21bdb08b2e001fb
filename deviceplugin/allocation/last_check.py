"""Whether a card still has room for a pod when a container of it starts (pure).

The extender sees to it that it has. This is the last look, for what went by the extender: a pod
bound by hand with annotations of somebody's own, or a card that has shrunk.
"""

from collections.abc import Callable, Iterable

from deviceplugin.allocation.grant import Grant
from deviceplugin.errors import Reason, Refused
from gpushare.annotations.pod_annotations import has_run, share_of
from gpushare.cards.model import Inventory
from gpushare.contract import RESOURCE_MEMORY
from gpushare.objects.model import Pod


def check(
    grant: Grant,
    pods: Iterable[Pod],
    inventory: Inventory | None,
    was_let_start: Callable[[str], bool],
) -> None:
    """Nothing if the pod of ``grant`` fits beside what runs; else Refused, with the amounts.

    ``pods`` are those of this node that are known; counted is one of which a container that holds
    devices has run, by the kubelet's status, or may run, by ``was_let_start(uid)``. Annotations
    prove no start: a user can write them. Neither does a container that holds no devices. A pod
    that has run itself is never refused.
    """
    own = grant.pod
    if has_run(own) or was_let_start(own.uid):
        return
    taken: dict[str, int] = {}
    for pod in pods:
        if pod.uid == own.uid:
            if has_run(pod):
                return
            continue
        if not (has_run(pod) or was_let_start(pod.uid)):
            continue
        share = share_of(pod, inventory)
        for uuid in share.cards if share is not None else ():
            taken[uuid] = taken.get(uuid, 0) + (share.units if share is not None else 0)
    wanted = grant.request.units_per_card
    for card in grant.cards:
        held = taken.get(card.uuid, 0)
        if held + wanted > card.units:
            raise Refused(
                f"pod {own.key}: it wants {wanted} units of {RESOURCE_MEMORY} of card {card.uuid}, "
                f"which has {card.units}, and pods that run there hold {held}",
                pod=own,
                reason=Reason.CARD_TOO_FULL,
            )
