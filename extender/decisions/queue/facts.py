"""What people see of the queue (pure)."""

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Final

from extender.decisions.gangs.gangs import Gangs
from extender.decisions.queue.entry_views import EntryViews
from extender.decisions.queue.quota_views import QuotaViews
from extender.decisions.queue.standings import Shown, Standings, WaitingGang, WaitingPod
from extender.decisions.queue.waiting_pods import Kind, WaitingPods
from extender.settings.configuration import QueueSettings
from gpushare.annotations.pod_annotations import asks_for_share
from gpushare.answers.queue import text
from gpushare.answers.queue.entries import (
    MOST_LISTED,
    Claim,
    QueueEntry,
    QueueFigures,
    QueueList,
    QueuePlace,
)
from gpushare.answers.queue.quotas import QuotaList
from gpushare.groups.group import Group
from gpushare.objects.model import Pod
from gpushare.quota.order import Standing

_SETTINGS: Final = QueueSettings()


class QueueViews:
    """Implements QueueStates. Positions are known only to the replica that decides.

    Admission keeps ``pods`` up to date. ``failed`` returns the entries without
    room, in order, and ``first_seconds`` for how long one has been the first of them.
    """

    def __init__(
        self,
        gangs: Gangs,
        pods: WaitingPods,
        settings: QueueSettings = _SETTINGS,
        failed: Callable[[], Sequence[tuple[Standing, Group | Kind]]] = list,
        first_seconds: Callable[[], float] = float,
    ) -> None:
        self._gangs, self._state, self._settings = gangs, gangs.state, settings
        self._failed, self._first_seconds = failed, first_seconds
        self._quotas = QuotaViews(gangs.state)
        self._standings = Standings(gangs, pods, self._quotas, settings.order)
        self._pods = pods
        lacking = self._quotas.lacking
        self.over_quota, self.full_models = lacking.over_quota, lacking.full_models

    def entries(
        self, namespace: str = "", most: int = MOST_LISTED
    ) -> Generator[None, None, QueueList]:
        """Return what waits in a namespace, or in all, in short steps.

        With a namespace no sentence names pods of others.
        """
        ordered = yield from self._standings.ordered()
        owners = (each.standing.owner for each in ordered)
        views, placed = self._views(namespace or None, owners), set[str]()
        shown: list[QueueEntry] = []
        more = 0
        for place, each in enumerate(ordered, 1):
            yield
            placed.add(each.standing.owner)
            if namespace and each.standing.namespace != namespace:
                continue
            if len(shown) >= most:
                more += 1
            elif (entry := (yield from views.view(each.what, place))) is not None:
                shown.append(entry)
        for other in self._standings.others(placed):
            yield
            if other is None or (namespace and _namespace(other) != namespace):
                continue
            if len(shown) >= most:
                more += views.reason(other, 0) is not None
            elif (entry := (yield from views.view(other, 0))) is not None:
                shown.append(entry)
        settings = self._settings
        order, backfill = settings.order, settings.backfill
        return QueueList(shown, len(ordered), more, order, backfill, self._state.unit_mib)

    def place_of(self, pod: Pod) -> Generator[None, None, QueuePlace | None]:
        """Return where a pod without a node is in the queue; None if it is not there."""
        group, is_queued = self._state.groups.of(pod.uid), self._is_queued(pod)
        may_wait = pod.has_our_gate or group is not None or is_queued
        if pod.node or pod.metadata.deletion_timestamp or not (self._decides and may_wait):
            return None
        owner = str(group.key) if group is not None else pod.uid
        ordered = yield from self._standings.ordered()
        places = (n for n, each in enumerate(ordered, 1) if each.standing.owner == owner)
        place = next(places, 0)
        shown: Shown = WaitingPod(pod, None) if group is None else WaitingGang(group, ())
        if place:
            shown = ordered[place - 1].what
        views = self._views(None)
        why = views.reason(shown, place)
        if why is None:
            return None
        created = pod.metadata.creation_timestamp or "" if group is None else group.created
        kind, age = "Pod" if group is None else "Gang", views.age(created)
        found = QueuePlace(len(ordered), kind, created, age, why.value, "", place)
        found.text = text.position(found, views.more(why, owner))
        return found

    def is_behind_first(self, pod: Pod) -> bool:
        """Return whether a pod must not pass the first entry, which has no room."""
        failed = () if self._settings.backfill or not self._decides else self._failed()
        may_wait = pod.has_our_gate or pod.uid in self._pods
        return may_wait and bool(failed) and failed[0][0].owner != pod.uid

    def places(self) -> Generator[None, None, list[list[str]]]:
        """Return the uids of the pods at each position, in order: one, or a gang's members."""
        ordered = (yield from self._standings.ordered()) if self._decides else []
        return [_uids(each.what) for each in ordered]

    def quotas(self, namespace: str = "") -> Generator[None, None, QuotaList]:
        """Return the quota of a namespace, or of all that say or use something."""
        found = yield from self.figures()
        return (yield from self._quotas.list(found.pods, found.units, namespace))

    def figures(self) -> Generator[None, None, QueueFigures]:
        """Count what waits, for metrics."""
        quotas, used, unreadable = self._quotas.figures()
        pods, units = Counter[str](), Counter[str]()
        oldest: dict[str, float] = {}
        if not self._decides:
            return QueueFigures(quotas=quotas, used=used, unreadable=unreadable)
        views, entries = self._views(None), 0
        for each in self._standings.placed():
            yield
            if each is None:
                continue
            entries += 1
            name = each.standing.namespace
            pods[name] += len(each.what.pods) if isinstance(each.what, WaitingGang) else 1
            units[name] += each.units
            oldest[name] = max(oldest.get(name, 0.0), views.age(each.standing.created))
        return QueueFigures(
            entries, pods, units, oldest, quotas, used, unreadable, self._first_seconds()
        )

    def is_asked_about(self, pod: Pod) -> bool:
        """Return whether the scheduler of a pod asks the extender about it."""
        return self._state.callers.ask_about(pod)

    def _is_queued(self, pod: Pod) -> bool:
        return asks_for_share(pod) and self._state.namespaces.is_queued(pod.metadata.namespace)

    @property
    def _decides(self) -> bool:
        return self._gangs.admits or self._gangs.gates_stay

    def _views(self, only: str | None, owners: Iterable[str] = ()) -> EntryViews:
        return EntryViews(
            self._standings,
            self._settings,
            failed=self._failed(),
            claim_of=self._claim_of,
            only=only,
            owners=owners,
        )

    def _claim_of(self, owner: str) -> Claim | None:
        state = self._state
        found = state.head_claims.get(owner)
        if found is None:
            return None
        left = sum(bool(state.use.node_of(uid)) for uid in found.waits_for)
        nodes = sorted({slot.node for slot in found.slots})
        return Claim(round(state.clock.monotonic() - found.since, 1), left, nodes)


def _uids(shown: Shown) -> list[str]:
    if isinstance(shown, WaitingGang):
        return [pod.uid for pod in shown.pods]
    return [shown.pod.uid]


def _namespace(shown: Shown) -> str:
    if isinstance(shown, WaitingGang):
        return shown.group.key.namespace
    return shown.pod.metadata.namespace
