"""PodDisruptionBudgets, and the selector by which the API server finds their pods."""

from typing import Final

import msgspec

from gpushare.objects.model import ObjectMeta
from gpushare.objects.scheduling import Requirement

_OPERATORS: Final = {"In": "{key} in ({values})", "NotIn": "{key} notin ({values})"}
_WITHOUT_VALUES: Final = {"Exists": "{key}", "DoesNotExist": "!{key}"}


class _Selector(msgspec.Struct, rename="camel", gc=False, frozen=True):
    match_labels: dict[str, str] | None = None
    match_expressions: tuple[Requirement, ...] | None = None


class _Spec(msgspec.Struct, gc=False, frozen=True):
    selector: _Selector | None = None


class _Status(msgspec.Struct, rename="camel", gc=False, frozen=True):
    disruptions_allowed: int = 0


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
