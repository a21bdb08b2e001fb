"""preempt: which of kube-scheduler's proposals would make room on the pod's cards (pure).

Its own dry run knows a node's sum of units alone. A proposal that would not make the card set fit
is left out, so that nobody dies for nothing; none is ever widened, and no victims are added.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gpushare.cards.model import Request
from gpushare.errors import RequestError
from gpushare.objects.model import Pod
from gpushare.placement.reasons import Reason


@dataclass(frozen=True, slots=True)
class Proposals:
    """``kept`` are nodes whose victims make room; ``vetoed`` the others, each with its reason."""

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

    Without victims a node is left out: kube-scheduler takes such an answer for an error, and for
    the whole attempt. For a pod whose request cannot be granted anywhere nobody is to die.
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
