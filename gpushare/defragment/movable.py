"""Find the pods that may move (pure).

Their controller replaces them, and a label or their priority says so.
"""

from collections import Counter
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from gpushare.cards.model import Share
from gpushare.contract import LABEL_MOVABLE
from gpushare.defragment.model import Movable
from gpushare.errors import RequestError
from gpushare.objects.model import NODE_OWNERS, Pod, PodStatus
from gpushare.objects.pod_requests import resources_used
from gpushare.placement.node_resources import judges
from gpushare.placement.trial import World
from gpushare.planning.shapes import Reader
from gpushare.preemption.model import Budgets, PreemptionWorld

NODES_A_STEP: Final = 16

# Controllers that replace a pod that is evicted whatever their settings are. That of a Job may
# count the eviction as a failure and end.
REPLACING: Final = frozenset({"ReplicaSet", "ReplicationController", "StatefulSet"})

NOT_ASKED: Final = f"no label {LABEL_MOVABLE}=true"
LABELED_NOT: Final = f"label {LABEL_MOVABLE}=false"
NO_CONTROLLER: Final = "no controller would replace them"
OF_NODE: Final = "of a DaemonSet, or static"
OF_GANG: Final = "of a gang"
ENDING: Final = "being deleted"
NO_CARDS: Final = "on unknown GPUs"
NOT_PLAIN: Final = (
    "volumes, claims, host ports, rules on other pods, or resources that no node offers, which are "
    "not evaluated"
)
UNREADABLE: Final = "requests that cannot be read"
TWO_BUDGETS: Final = "selected by two PodDisruptionBudgets"
NO_BUDGET: Final = "no eviction is allowed by their PodDisruptionBudget now"


@dataclass(frozen=True, slots=True)
class Rules:
    """``below_priority``: pods of REPLACING controllers with a lower priority may move too.

    Their label may still forbid it. Without it only pods with the label may move.
    """

    budgets: Budgets = field(default_factory=Budgets)
    below_priority: int | None = None


@dataclass(frozen=True, slots=True)
class Movables:
    """``others`` counts the pods that may not move, by the reason."""

    pods: tuple[Movable, ...]
    others: Counter[str]


def movables_of(world: PreemptionWorld, rules: Rules) -> Generator[None, None, Movables]:
    """Return the pods that may move now, in short steps.

    Budgets are judged pod by pod: moves are made one after the other, and the API server decides
    about each.
    """
    found: list[Movable] = []
    others: Counter[str] = Counter()
    reader = Reader(world)
    for number, (pod, share) in enumerate(_bound(world)):
        if number % NODES_A_STEP == 0:
            yield
        why = why_not(world, pod, rules) or (NO_CARDS if not share.cards else "")
        movable = None if why else movable_of(reader, pod, share)
        if movable is not None:
            found.append(movable)
        else:
            others[why or UNREADABLE] += 1
    return Movables(tuple(found), others)


def all_movable(world: World) -> Generator[None, None, tuple[Movable, ...]]:
    """Return all pods on known cards as if every one may move, in short steps."""
    found, reader = [], Reader(world)
    for number, (pod, share) in enumerate(_bound(world)):
        if number % NODES_A_STEP == 0:
            yield
        movable = movable_of(reader, pod, share) if share.cards else None
        if movable is not None:
            found.append(movable)
    return tuple(found)


def movable_of(reader: Reader, pod: Pod, share: Share) -> Movable | None:
    """Return the pod with what another one like it asks for; None if that cannot be read."""
    used = resources_used(pod)
    # Its controller creates the other one without a node, and as its template says.
    other = replace(pod, spec=replace(pod.spec, node_name=None), status=PodStatus())
    try:
        return Movable(pod, reader.shape_of(other), share, used) if used is not None else None
    except RequestError:
        return None


def why_not(world: PreemptionWorld, pod: Pod, rules: Rules) -> str:
    """Return why a bound pod may not move; empty if it may."""
    label = pod.labels.get(LABEL_MOVABLE)
    kind = next((own.kind for own in pod.metadata.owner_references or () if own.controller), "")
    by_priority = rules.below_priority is not None and pod.priority < rules.below_priority
    budgets = rules.budgets.of.get(pod.uid, ())
    reasons = {
        NO_CONTROLLER: not kind,
        OF_NODE: kind in NODE_OWNERS,
        LABELED_NOT: label == "false",
        NOT_ASKED: label != "true" and not (by_priority and kind in REPLACING),
        ENDING: pod.metadata.deletion_timestamp is not None,
        OF_GANG: world.group_of(pod.uid) is not None,
        NOT_PLAIN: not (pod.is_plain and judges(world.free_resources(pod.node), pod)),
        TWO_BUDGETS: len(budgets) > 1,
        NO_BUDGET: any(rules.budgets.allowed.get(each, 0) < 1 for each in budgets),
    }
    return next((text for text, applies in reasons.items() if applies), "")


def _bound(world: World) -> Iterable[tuple[Pod, Share]]:
    for name in sorted(world.node_names()):
        for pod in world.pods_of(name):
            share = world.ledger.share(pod.uid)
            if share is not None:
                yield pod, share
