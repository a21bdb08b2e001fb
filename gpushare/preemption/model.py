"""Define what the search for victims reads, and what it answers (pure)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Protocol

from gpushare.groups.group import Group
from gpushare.objects.model import Pod
from gpushare.objects.pod_requests import Requests
from gpushare.placement.trial import World
from gpushare.planning.ask import Plan

_NONE: Final[frozenset[str]] = frozenset()
_NO_BUDGETS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType({})
_NOTHING: Final[Mapping[str, int]] = MappingProxyType({})


class PreemptionWorld(World, Protocol):
    """What a search reads beyond a plan: gangs, and which pods are about to end."""

    def group_of(self, uid: str) -> Group | None:
        """Return the gang of a pod."""

    def ended_of(self, group: Group) -> int:
        """Return how many members of a gang have succeeded, which no watch shows."""

    def will_end(self, uid: str) -> bool:
        """Return whether a bound pod is being deleted and should be gone within its grace period.

        Its room is as good as free for the pods that wait for it. A pod that outlives its grace
        period, for example because of a finalizer, is not about to end.
        """

    def requests_used(self, uid: str) -> Requests:
        """Return what a bound pod uses of its node, in thousandths; empty if that is unknown.

        Like ``free_resources`` it has all that kube-scheduler counts, also GPU memory.
        """


@dataclass(frozen=True, slots=True)
class Budgets:
    """PodDisruptionBudgets, as far as they are known.

    ``of`` are the budgets that guard a pod, by its uid; a pod that is not in it counts as one
    without a budget. ``allowed`` is how many pods each budget lets go now. The API server evicts no
    pod that two budgets guard (registry/core/pod/storage/eviction.go).
    """

    of: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: _NO_BUDGETS)
    allowed: Mapping[str, int] = field(default_factory=lambda: _NOTHING)


@dataclass(frozen=True, slots=True)
class Rules:
    """Which pods may be victims besides the rule that their priority is lower.

    ``any_priority``: that rule does not apply, because nobody is evicted: the search finds the pods
    whose end to wait for. ``preemptible_only``: only those with the label
    gpushare.aliyun.com/preemptible=true. ``spared`` are uids of pods that cannot be evicted now,
    ``spared_namespaces`` have budgets that are not known. ``leaving`` are uids of pods that are
    about to be evicted for others: they count as pods that will end. ``hinted`` are the first
    characters of uids of pods that an earlier search for the same pod or gang has chosen: among
    equals they are victims before others. ``undecided`` are uids of pods that others may evict:
    they are no victims, and their gangs must be able to go on without them.
    """

    any_priority: bool = False
    preemptible_only: bool = False
    spared: frozenset[str] = _NONE
    spared_namespaces: frozenset[str] = _NONE
    leaving: frozenset[str] = _NONE
    hinted: frozenset[str] = _NONE
    undecided: frozenset[str] = _NONE
    budgets: Budgets = field(default_factory=Budgets)


@dataclass(frozen=True, slots=True)
class Preemption:
    """The ``victims`` to evict so that all slots of ``plan`` can be used once they are gone.

    Without victims the slots need only room that is free, or of pods that are about to end; then
    ``is_free`` says whether all of it is free now.
    """

    plan: Plan
    victims: tuple[Pod, ...] = ()
    is_free: bool = False
