"""What people see of the quotas of namespaces (pure)."""

from collections.abc import Generator, Mapping
from functools import partial

from extender.decisions.cluster_state import ClusterState
from gpushare.answers.queue.lacking import Lacking
from gpushare.answers.queue.over_quota import Hanging
from gpushare.answers.queue.quotas import ModelQuota, QuotaList, QuotaView
from gpushare.quota.lost import why_lost
from gpushare.quota.quota import NO_QUOTA
from gpushare.quota.reasons import NAMESPACE_ENDS


class QuotaViews:
    """Every replica knows the quotas and what is used of them."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self.lacking = Lacking(
            state.namespaces,
            state.namespace_use,
            state.quotas,
            state.unit_mib,
            partial(_hanging, state),
        )

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

    def _view(self, name: str, pods: int, units: int) -> QuotaView:
        known, use = self._state.namespaces.get(name), self._state.namespace_use
        used = use.used(name)
        quota = known.quota or NO_QUOTA
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
