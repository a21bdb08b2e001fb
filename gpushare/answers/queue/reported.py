"""The quotas that an extender reports, for sentences that are computed elsewhere (pure)."""

from collections.abc import Mapping

from gpushare.answers.queue.entries import NoQueue
from gpushare.answers.queue.over_quota import Limit, OverQuota, of_models, of_request
from gpushare.answers.queue.quotas import QuotaList
from gpushare.cards.model import Request
from gpushare.objects.model import Pod
from gpushare.quota.reasons import NAMESPACE_ENDS


class ReportedQuotas(NoQueue):
    """Implements QueueStates, without positions.

    What is reserved for a pod counts as used by others: that is so until it is bound.
    """

    def __init__(self, found: QuotaList) -> None:
        self._unit_mib = found.unit_mib
        self._quotas = {each.namespace: each for each in found.quotas}

    def over_quota(self, pod: Pod, request: Request) -> OverQuota | None:
        namespace, asked = pod.metadata.namespace, request.units
        found = self._quotas.get(namespace)
        if found is None:
            return None
        if found.problem == NAMESPACE_ENDS.text:
            return OverQuota(namespace, Limit.ENDING.value)
        if found.problem:
            return OverQuota(namespace, Limit.UNREADABLE.value, problem=found.problem)
        if found.limit is None or found.used + asked <= found.limit:
            return None
        described = OverQuota(
            namespace,
            Limit.UNITS.value,
            used=found.used,
            quota=found.limit,
            unit_mib=self._unit_mib,
        )
        return of_request(described, request)

    def full_models(self, pod: Pod, request: Request) -> Mapping[str, OverQuota]:
        namespace, asked = pod.metadata.namespace, request.units
        found = self._quotas.get(namespace)
        full = {
            model: (each.used, each.limit)
            for model, each in (found.models if found is not None else {}).items()
            if each.used + asked > each.limit
        }
        return of_models(namespace, request, self._unit_mib, full)
