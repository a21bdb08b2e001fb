"""Find what the quota of a namespace lacks, with its amounts (pure)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from gpushare.answers.queue.over_quota import (
    LIMITS,
    Hanging,
    Limit,
    OverQuota,
    of_models,
    of_request,
)
from gpushare.cards.model import Request
from gpushare.objects.model import Pod
from gpushare.placement.reasons import Reason
from gpushare.quota.namespaces import Namespaces
from gpushare.quota.quota import NO_QUOTA
from gpushare.quota.quotas import Quotas
from gpushare.quota.use import NamespaceUse

_NAMED: Final = 2  # pods that hang


def _nobody(_: str) -> Sequence[Hanging]:
    return ()


class Lacking:
    """``hanging`` returns the pods of a namespace that hang, those that count first.

    A unit has ``unit_mib`` MiB.
    """

    def __init__(
        self,
        namespaces: Namespaces,
        use: NamespaceUse,
        quotas: Quotas,
        unit_mib: int,
        hanging: Callable[[str], Sequence[Hanging]] = _nobody,
    ) -> None:
        self._namespaces, self._use, self._quotas = namespaces, use, quotas
        self._unit_mib, self._hanging = unit_mib, hanging

    def over_quota(self, pod: Pod, request: Request) -> OverQuota | None:
        """Return why the quota leaves nothing for a pod; None if it does."""
        found = self._quotas.why_not(pod, request)
        if not isinstance(found, Reason):
            return None
        described = self.described(found, pod.metadata.namespace, request.units, (pod.uid,))
        return of_request(described, request)

    def full_models(self, pod: Pod, request: Request) -> Mapping[str, OverQuota]:
        """Return the models of GPUs for which the quota leaves too little."""
        found = self._quotas.why_not(pod, request)
        if isinstance(found, Reason) or not found:
            return {}
        namespace = pod.metadata.namespace
        used = self._use.used(namespace, besides=(pod.uid,))
        models = (self._namespaces.get(namespace).quota or NO_QUOTA).models
        full = {model: (used[model], models[model]) for model in found}
        return of_models(namespace, request, self._unit_mib, full)

    def of_gang(self, reason: Reason, members: Sequence[Pod], least: int) -> OverQuota:
        """Return a reason of quotas, for so many of the members at ``least``, with its amounts."""
        asked = self._quotas.least_units(members, least)
        uids = [pod.uid for pod in members]
        return self.described(reason, members[0].metadata.namespace, asked, uids, who="gang")

    def described(
        self,
        reason: Reason,
        namespace: str,
        asked: int,
        besides: Iterable[str] = (),
        *,
        who: str = "pod",
    ) -> OverQuota:
        """Return a reason of quotas with its amounts; the pods ``besides`` (uids) do not count."""
        limit, known = LIMITS[reason.text], self._namespaces.get(namespace)
        if limit is not Limit.UNITS:
            return OverQuota(namespace, limit.value, who, problem=known.problem)
        hanging = self._hanging(namespace)
        return OverQuota(
            namespace,
            limit.value,
            who,
            self._use.used(namespace, besides=besides).total(),
            (known.quota or NO_QUOTA).units or 0,
            asked,
            hanging=tuple(hanging[:_NAMED]),
            hanging_count=len(hanging),
            unit_mib=self._unit_mib,
        )
