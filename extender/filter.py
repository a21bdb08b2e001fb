"""filter: the nodes on which the pod's card set fits, and why not for the others (pure)."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from gpushare import records
from gpushare.cards import Request
from gpushare.errors import RequestError
from gpushare.objects import Pod
from gpushare.placement.reasons import COOLING, Reason


@dataclass(frozen=True, slots=True)
class Filtered:
    """``final`` are nodes that could not take the pod whoever went away there."""

    fitting: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    final: dict[str, str] = field(default_factory=dict)


WhyNot = Callable[[str, Request], Reason | None]


def filter_nodes(pod: Pod, nodes: Iterable[str], why_not: WhyNot) -> Filtered:
    """Sort ``nodes`` by whether ``why_not(node, request)`` gives a reason.

    A pod whose request cannot be granted anywhere fails on every node with the text of that: in
    ``Error`` kube-scheduler would treat it as a broken extender and retry at once.
    """
    found = Filtered()
    try:
        request = records.request_of(pod)
    except RequestError as err:
        found.final.update(dict.fromkeys(nodes, str(err)))
        return found
    cooling: list[str] = []
    for node in nodes:
        reason = why_not(node, request)
        if reason is None:
            found.fitting.append(node)
        elif reason.is_final:
            found.final[node] = reason.text
        else:
            found.failed[node] = reason.text
            if reason is COOLING:
                cooling.append(node)
    if not found.fitting:
        # kube-scheduler would look again only when something in the cluster changes, or after five
        # minutes. It repeats a refused bind by itself, within ten seconds: so bind refuses these.
        for node in cooling:
            found.failed.pop(node, None)  # a caller may name it twice
        found.fitting.extend(cooling)
    return found
