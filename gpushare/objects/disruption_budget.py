"""PodDisruptionBudgets: the selector by which the API server finds pods, and whom they guard."""

from collections.abc import Sequence
from typing import Final

import msgspec

from gpushare.objects.model import ObjectMeta
from gpushare.objects.scheduling import Requirement

# A pod in this phase is evicted whatever its budgets say (eviction.go, canIgnorePDB).
UNGUARDED: Final = "Pending"
_OPERATORS: Final = {"In": "{key} in ({values})", "NotIn": "{key} notin ({values})"}
_WITHOUT_VALUES: Final = {"Exists": "{key}", "DoesNotExist": "!{key}"}


class _Selector(msgspec.Struct, rename="camel", gc=False, frozen=True):
    match_labels: dict[str, str] | None = None
    match_expressions: tuple[Requirement, ...] | None = None


class _Spec(msgspec.Struct, rename="camel", gc=False, frozen=True):
    selector: _Selector | None = None
    unhealthy_pod_eviction_policy: str | None = None


class _Status(msgspec.Struct, rename="camel", gc=False, frozen=True):
    disruptions_allowed: int = 0
    current_healthy: int = 0
    desired_healthy: int = 0


class DisruptionBudget(msgspec.Struct, gc=False, frozen=True):
    metadata: ObjectMeta
    spec: _Spec = _Spec()
    status: _Status = _Status()

    @property
    def key(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def allowed(self) -> int:
        """Return how many of its pods can be evicted now."""
        return max(0, self.status.disruptions_allowed)

    @property
    def lets_unready_go(self) -> bool:
        """Return whether pods that run and are not ready can be evicted, whatever is allowed."""
        status = self.status
        is_healthy = status.current_healthy >= status.desired_healthy > 0
        return is_healthy or self.spec.unhealthy_pod_eviction_policy == "AlwaysAllow"

    @property
    def selector(self) -> str | None:
        """Return the label selector of its pods, empty for all of the namespace.

        None if it selects none: in policy/v1 that is a budget without a selector. An operator that
        is not known may select any pod.
        """
        found = self.spec.selector
        if found is None:
            return None
        terms = [f"{key}={value}" for key, value in (found.match_labels or {}).items()]
        for each in found.match_expressions or ():
            form = _OPERATORS.get(each.operator) or _WITHOUT_VALUES.get(each.operator)
            if form is None:
                return ""
            terms.append(form.format(key=each.key, values=",".join(each.values or ())))
        return ",".join(terms)


def guards_of(budgets: Sequence[DisruptionBudget], *, is_ready: bool) -> tuple[str, ...]:
    """Return the keys of the budgets that guard a pod that they select and that is not UNGUARDED.

    The API server evicts a pod that is not ready, without counting it, if its only budget lets such
    pods go (registry/core/pod/storage/eviction.go, Create).
    """
    if len(budgets) == 1 and not is_ready and budgets[0].lets_unready_go:
        return ()
    return tuple([each.key for each in budgets])
