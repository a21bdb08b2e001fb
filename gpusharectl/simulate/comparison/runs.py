"""Run a scenario once for each node policy, and compare what they place and leave (pure)."""

from collections import Counter
from collections.abc import Sequence

import msgspec

from gpushare.annotations.pod_annotations import asks_for_share
from gpushare.cards.placement_policy import CardPolicy, NodePolicy
from gpushare.contract import ANNOTATION_NODE_POLICY
from gpushare.objects.model import Pod
from gpushare.placement.rank import Policies
from gpusharectl.policies.kinds import Kind, kinds_of, shown, valid_amounts
from gpusharectl.policies.left import Left, left_on
from gpusharectl.simulate import left_out, view
from gpusharectl.simulate.other_systems.other_pods import gpus_of
from gpusharectl.simulate.run import NEVER_SIMULATED, Run
from gpusharectl.simulate.scenario import Scenario


class PolicyView(msgspec.Struct, rename="camel", frozen=True):
    """The number of ``pending`` pods with a policy, and what it leaves; ``waiting``: all kinds."""

    policy: str
    pending: int
    waiting: tuple[Kind, ...]
    left: Left


class Moment(msgspec.Struct, rename="camel", frozen=True):
    """The cluster with each policy after all that happens at ``at`` (seconds)."""

    at: int
    policies: tuple[PolicyView, ...]


class Comparison(msgspec.Struct, rename="camel", frozen=True):
    """``moments``: when pods request most, and the end; one if these are the same.

    ``placed_again`` is the number of pods that are bound in the files, ``own_policy`` that of pods
    that request a node policy themselves. ``unknown``: what of GPUs is not understood.
    """

    version: int
    unit_mib: int = msgspec.field(name="unitMiB")
    card_policy: str
    left_out: tuple[str, ...]
    not_simulated: tuple[str, ...]
    ignored: tuple[str, ...]
    unknown: tuple[str, ...]
    placed_again: int
    own_policy: int
    kinds: tuple[Kind, ...]
    moments: tuple[Moment, ...]


def compare(scenario: Scenario, policies: Sequence[NodePolicy], card: CardPolicy) -> Comparison:
    """Return what each of ``policies``, at least one, makes of the scenario."""
    pods = [event.pod for event in scenario.pods if asks_for_share(event.pod)]
    kinds = shown(kinds_of(pods))
    ats = _times(scenario)
    runs = [Run(scenario, Policies(policy, card)) for policy in policies]
    views: dict[int, list[PolicyView]] = {at: [] for at in ats}
    for run in runs:
        for at in run.times():
            if at in views:
                views[at].append(_view(run, kinds))
    passed = set().union(*(run.passed for run in runs))
    return Comparison(
        version=view.VERSION,
        unit_mib=scenario.unit_mib,
        card_policy=card.value,
        left_out=(*left_out.of(scenario), *left_out.claims(passed)),
        not_simulated=NEVER_SIMULATED,
        ignored=tuple(scenario.ignored.lines()),
        unknown=tuple(dict.fromkeys(text for run in runs for text in run.unknown)),
        placed_again=scenario.placed_again,
        own_policy=sum(ANNOTATION_NODE_POLICY in pod.annotations for pod in pods),
        kinds=kinds,
        moments=tuple(Moment(at, tuple(found)) for at, found in views.items()),
    )


def _times(scenario: Scenario) -> list[int]:
    """Return the last time at which most units are requested, and the last one of all."""
    changes: Counter[int] = Counter({event.at: 0 for event in scenario.nodes})
    for event in scenario.pods:
        units = _units(event.pod)
        changes[event.at] += units
        if event.delete is not None:
            changes[event.delete] -= units
    requested = most = busiest = 0
    for at in sorted(changes):
        requested += changes[at]
        if requested >= most:
            most, busiest = requested, at
    return sorted({busiest, max(changes, default=0)})


def _units(pod: Pod) -> int:
    request = valid_amounts(pod) if asks_for_share(pod) else None
    return request.units if request is not None else 0


def _view(run: Run, kinds: Sequence[Kind]) -> PolicyView:
    cluster = run.cluster
    # On other nodes, other systems decide.
    nodes = [name for name in cluster.ledger.nodes() if cluster.others.offered(name) is None]
    left = left_on(cluster.ledger, nodes, kinds)
    waiting = [pod for pod in run.waiting if not gpus_of(pod)]  # no policy places whole GPUs
    return PolicyView(run.policies.node.value, len(waiting), kinds_of(waiting), left)
