"""filter: the nodes on which the pod's card set fits, and why not for the others (pure).

kube-scheduler encodes, decodes and scores every node that it is told of, one pod after the other.
So where many fit it is offered the few best of them. The rest are withheld: they are in no part of
the answer, as if kube-scheduler had not asked about them.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from extender.decisions.attempts import NOWHERE
from gpushare.objects.model import Pod
from gpushare.placement.reasons import COOLING, NO_CARDS
from gpushare.placement.verdict_cache import Verdicts


@dataclass(slots=True)
class Filtered:
    """``final`` are nodes that could not take the pod whoever went away there.

    ``best`` is where the pod is expected to go. Where nodes are withheld, so are the reasons of
    those that were refused: kube-scheduler reads them only where no node is left.
    """

    fitting: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    final: dict[str, str] = field(default_factory=dict)
    best: str = ""
    is_short: bool = False


def refuse_all(nodes: Sequence[str], why: str) -> Filtered:
    """What a request that can be granted nowhere is answered with.

    In ``Error`` kube-scheduler would treat it as a broken extender and retry at once.
    """
    return Filtered(final=dict.fromkeys(nodes, why))


def filter_nodes(
    nodes: Sequence[str],
    verdicts: Verdicts,
    *,
    few: int,
    last: Mapping[str, int] = NOWHERE,
    cooling: Collection[str] = (),
) -> Filtered:
    """Sort ``nodes`` into those that fit, the best ``few`` of them, and the others.

    ``few`` of 0 offers all. Nodes in ``last`` count as worse than all others, the more the
    higher the number, and those in ``cooling`` fit only where no other does.
    """
    asked = set(nodes)
    resting = [name for name in cooling if name in asked and name in verdicts.fits]
    well = asked.difference(resting) if resting else asked
    best, is_all = best_of(verdicts, well, few or 1, last)
    if not best and resting:
        # kube-scheduler would look again only when something in the cluster changes, or after five
        # minutes. It repeats a refused bind by itself, within ten seconds: so bind refuses these.
        best, is_all = best_of(verdicts, set(resting), few or 1, last)
        resting = []
    if few and not is_all:
        return Filtered(fitting=best, best=best[0], is_short=True)
    fits = verdicts.fits
    found = Filtered(best=best[0] if best else "")
    found.fitting = [name for name in nodes if name in fits and name not in resting]
    refused = asked.difference(fits) if len(found.fitting) < len(nodes) else ()
    for name in refused:
        reason = verdicts.refused.get(name, NO_CARDS)
        (found.final if reason.is_final else found.failed)[name] = reason.text
    found.failed |= dict.fromkeys(resting, COOLING.text)
    return found


def best_of(
    verdicts: Verdicts, asked: Collection[str], most: int, last: Mapping[str, int]
) -> tuple[list[str], bool]:
    """The best ``most`` of the nodes in ``asked`` that fit, best first, and whether that is all.

    A node that fits only while others do not go where they are expected is taken where no other
    is; so is one in ``last``, before those.
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


def minds_other_nodes(pod: Pod) -> bool:
    """Whether the pod has preferences that kube-scheduler can weigh only between many nodes."""
    spec = pod.spec
    affinity = spec.affinity
    if affinity is not None:
        parts = (affinity.node_affinity, affinity.pod_affinity, affinity.pod_anti_affinity)
        if any(part is not None and part.preferred for part in parts):
            return True
    constraints = spec.topology_spread_constraints or ()
    return any(each.when_unsatisfiable == "ScheduleAnyway" for each in constraints)
