"""preempt: which of kube-scheduler's proposals would free the GPUs that the pod needs (pure).

kube-scheduler's own dry run knows only the sum of a node's units. A proposal after which the pod
would still not fit is left out, so that no pod is evicted in vain. No victims are ever added.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gpushare.cards.model import Request
from gpushare.errors import RequestError
from gpushare.objects.model import Pod
from gpushare.placement.reasons import Reason


@dataclass(frozen=True, slots=True)
class Proposals:
    """``kept`` are nodes on which the pod then fits; ``vetoed`` the others with their reasons."""

    kept: list[str] = field(default_factory=list)
    vetoed: dict[str, str] = field(default_factory=dict)


WhyNotWithout = Callable[[str, Request, Sequence[str]], Reason | None]

NO_VICTIMS = "kube-scheduler named no victims"


def judge(
    pod: Pod,
    proposed: Mapping[str, Sequence[str]],
    request_of: Callable[[Pod], Request],
    why_not_without: WhyNotWithout,
) -> Proposals:
    """Sort proposed nodes, with the uids of their victims, by whether the pod would fit then.

    A node without victims is left out: kube-scheduler takes it for an error of the whole attempt.
    No pod is evicted for a request that no node can grant.
    """
    found = Proposals()
    try:
        request = request_of(pod)
    except RequestError as err:
        found.vetoed.update(dict.fromkeys(proposed, str(err)))
        return found
    for node, victims in proposed.items():
        reason = why_not_without(node, request, victims)
        if not victims:
            found.vetoed[node] = NO_VICTIMS
        elif reason is not None:
            found.vetoed[node] = reason.text
        else:
            found.kept.append(node)
    return found
