"""filter: the nodes on which the pod's GPUs fit, and why not for the others (pure).

kube-scheduler encodes, decodes and scores every node that it gets, one pod after the other. So if
many nodes fit it is offered the best few. The rest are withheld: they are in no part of the answer,
as if kube-scheduler had not asked about them.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from extender.decisions.attempts import NONE_TRIED
from gpushare.objects.model import Pod
from gpushare.placement.reasons import COOLING, NO_CARDS
from gpushare.placement.verdict_cache import Verdicts


@dataclass(slots=True)
class Filtered:
    """The nodes that fit, and the reasons by node of those that do not.

    kube-scheduler must not look for victims on a node that it has asked about: the node has passed
    its own filters, so there are none, and the errors that it writes into the pod's condition
    instead make it try the pod again, without end. So all of them are ``final``, unresolvable by
    preemption. ``failed`` has only the pod's nominated node while victims there still end: if that
    is unresolvable, kube-scheduler preempts elsewhere (default_preemption.go,
    PodEligibleToPreemptOthers).

    ``best`` is where the pod is expected to go. If nodes are withheld (``is_short``), so are the
    reasons of the rejected ones: kube-scheduler reads them only if no node is left. If
    ``is_retried``, kube-scheduler tries the pod again within ten seconds, though nothing in the
    cluster changes.
    """

    fitting: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    final: dict[str, str] = field(default_factory=dict)
    best: str = ""
    is_short: bool = False
    is_retried: bool = False


def reject_all(nodes: Sequence[str], why: str) -> Filtered:
    """Answer for a request that no node can ever grant.

    In ``Error`` kube-scheduler would treat it as a broken extender and retry at once.
    """
    return Filtered(final=dict.fromkeys(nodes, why))


def filter_nodes(
    nodes: Sequence[str],
    verdicts: Verdicts,
    *,
    few: int,
    last: Mapping[str, int] = NONE_TRIED,
    cooling: Collection[str] = (),
    nominated: str | None = None,
) -> Filtered:
    """Sort ``nodes`` into the best ``few`` of those that fit, and the others.

    A ``few`` of 0 offers all. Nodes in ``last`` come after all others, in the order of their
    numbers. Nodes in ``cooling`` fit only if no other node does. ``nominated`` is where room
    becomes free for the pod by kube-scheduler's preemption.
    """
    asked = set(nodes)
    resting = [name for name in cooling if name in asked and name in verdicts.fits]
    well = asked.difference(resting) if resting else asked
    best, is_all = best_of(verdicts, well, few or 1, last)
    if not best and resting:
        # kube-scheduler would retry only when something in the cluster changes, or after five
        # minutes. It repeats a failed bind by itself, within ten seconds: so bind rejects these.
        best, is_all = best_of(verdicts, set(resting), few or 1, last)
        resting = []
    if few and not is_all:
        return Filtered(fitting=best, best=best[0], is_short=True)
    fits, why = verdicts.fits, verdicts.rejected.get
    found = Filtered(best=best[0] if best else "")
    found.fitting = [name for name in nodes if name in fits and name not in resting]
    refused = asked.difference(fits) if len(found.fitting) < len(nodes) else ()
    found.final = {name: why(name, NO_CARDS).text for name in refused}
    found.final |= dict.fromkeys(resting, COOLING.text)
    if nominated in found.final:
        reason = COOLING if nominated in fits else why(nominated, NO_CARDS)
        if not reason.is_final:
            found.failed[nominated] = found.final.pop(nominated)
    return found


def best_of(
    verdicts: Verdicts, asked: Collection[str], most: int, last: Mapping[str, int]
) -> tuple[list[str], bool]:
    """Return the best ``most`` fitting nodes of ``asked``, best first, and whether that is all.

    A node in ``last`` is taken only if the others are not enough, and after those a node that fits
    only if other pods do not go where they are expected.
    """
    found: list[str] = []
    later: list[str] = []
    is_all, is_any_prompt = True, False
    for is_late, _, _, name in verdicts.ranks:
        if name not in asked:
            continue
        if len(found) == most or (is_late and is_any_prompt):
            is_all = False
            break
        is_any_prompt |= not is_late
        (later if name in last else found).append(name)
    found += sorted(later, key=last.__getitem__)
    return found[:most], is_all and len(found) <= most


def prefers_some_nodes(pod: Pod) -> bool:
    """Return whether kube-scheduler needs many nodes to weigh the pod's preferences."""
    spec = pod.spec
    affinity = spec.affinity
    if affinity is not None:
        parts = (affinity.node_affinity, affinity.pod_affinity, affinity.pod_anti_affinity)
        if any(part is not None and part.preferred for part in parts):
            return True
    constraints = spec.topology_spread_constraints or ()
    return any(each.when_unsatisfiable == "ScheduleAnyway" for each in constraints)
