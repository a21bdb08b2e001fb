"""What people see of the quotas of namespaces (pure)."""

from collections.abc import Generator, Iterable, Mapping
from typing import Final

from extender.decisions.cluster_state import ClusterState
from gpushare.answers.queue.over_quota import LIMITS, Hanging, Limit, OverQuota
from gpushare.answers.queue.quotas import ModelQuota, QuotaList, QuotaView
from gpushare.cards.model import Request
from gpushare.objects.model import Pod
from gpushare.placement.reasons import Reason
from gpushare.quota.lost import why_lost
from gpushare.quota.quota import Quota
from gpushare.quota.reasons import NAMESPACE_ENDS

_NO_QUOTA: Final = Quota()
_NAMED: Final = 2  # pods that hang


class QuotaViews:
    """Every replica knows the quotas and what is used of them."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state

    def over_quota(self, pod: Pod, request: Request) -> OverQuota | None:
        """Return why the quota leaves nothing for a pod; None if it does."""
        found = self._state.quotas.why_not(pod, request)
        if not isinstance(found, Reason):
            return None
        return self.described(found, pod.metadata.namespace, request.units, (pod.uid,))

    def full_models(self, pod: Pod, request: Request) -> Mapping[str, OverQuota]:
        """Return the models of GPUs for which the quota leaves too little."""
        found = self._state.quotas.why_not(pod, request)
        if isinstance(found, Reason) or not found:
            return {}
        namespace = pod.metadata.namespace
        used = self._state.namespace_use.used(namespace, besides=(pod.uid,))
        models = self._quota(namespace).models
        return {
            model: OverQuota(
                namespace,
                Limit.MODEL.value,
                used=used[model],
                quota=models[model],
                asked=request.units,
                model=model,
            )
            for model in found
        }

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
        limit = LIMITS[reason.text]
        problem = self._state.namespaces.get(namespace).problem
        used = self._state.namespace_use.used(namespace, besides=besides).total()
        if limit is Limit.UNITS:
            quota = self._quota(namespace).units or 0
            hanging = _hanging(self._state, namespace)
            return OverQuota(
                namespace,
                limit.value,
                who,
                used,
                quota,
                asked,
                hanging=tuple(hanging[:_NAMED]),
                hanging_count=len(hanging),
            )
        return OverQuota(namespace, limit.value, who, problem=problem)

    def list(
        self, pods: Mapping[str, int], units: Mapping[str, int], only: str = ""
    ) -> Generator[None, None, QuotaList]:
        """Return the quotas, in short steps; ``pods`` and ``units`` wait, by namespace."""
        state, found = self._state, list[QuotaView]()
        names = {only} if only else {each.name for each in state.namespaces}
        if not only:
            names |= {*state.namespace_use.namespaces(), *pods}
        for name in sorted(names):
            yield
            found.append(self._view(name, pods.get(name, 0), units.get(name, 0)))
        why, capacity = state.namespaces.why_unknown, state.namespace_use.capacity
        return QuotaList(found, capacity, why, state.unit_mib)

    def figures(self) -> tuple[dict[str, int], dict[str, int], int]:
        """Return quotas and used units of namespaces with a quota, and how many are unreadable."""
        state, quotas, used, unreadable = self._state, dict[str, int](), dict[str, int](), 0
        for each in state.namespaces:
            unreadable += bool(each.problem)
            if each.quota is not None and each.quota.units is not None:
                quotas[each.name] = each.quota.units
                used[each.name] = state.namespace_use.used(each.name).total()
        return quotas, used, unreadable

    def _quota(self, namespace: str) -> Quota:
        return self._state.namespaces.get(namespace).quota or _NO_QUOTA

    def _view(self, name: str, pods: int, units: int) -> QuotaView:
        known, use = self._state.namespaces.get(name), self._state.namespace_use
        used = use.used(name)
        quota = known.quota or _NO_QUOTA
        return QuotaView(
            namespace=name,
            queued=known.is_queued,
            used=used.total(),
            limit=quota.units,
            models={
                each: ModelQuota(used[each], most, bool(use.nodes_with(frozenset({each}))))
                for each, most in quota.models.items()
            },
            waiting_pods=pods,
            waiting_units=units,
            problem=known.problem or (NAMESPACE_ENDS.text if known.is_ending else ""),
        )


def _hanging(state: ClusterState, namespace: str) -> list[Hanging]:
    """Return the pods of a namespace that hang, those that count first."""
    found: list[Hanging] = []
    for uid in state.ending.hanging():
        pod, share = state.pod(uid), state.ledger.share(uid)
        if pod is None or share is None or pod.metadata.namespace != namespace:
            continue
        lost, since = why_lost(state.node(share.node)), pod.metadata.deletion_timestamp or ""
        found.append(Hanging(pod.metadata.name, share.node, since, lost))
    return sorted(found, key=lambda each: (bool(each.lost), each.since, each.pod))
