"""Ask an extender, or compute the same answers here from the API server's lists."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

import msgspec

from gpushare.answers import explain, gang_what_if, what_if
from gpushare.answers.gangs import GangStates
from gpushare.contract import EXTENDER_PREFIX
from gpushare.errors import UNDECODABLE, ApiError, GpushareError, NotFound, SettingsError
from gpushare.groups.sources import key_of
from gpushare.kube.client import Kube
from gpushare.objects.model import Node, Pod
from gpushare.process.time_slices import run_all
from gpusharectl.reach.extender import Extender, all_nodes, all_pods
from gpusharectl.reach.listed_cluster import ListedCluster
from gpusharectl.reach.listed_gangs import gangs_of
from gpusharectl.reach.rights import Lacking, Right

UNKNOWN_HERE: Final = (
    "what only the extender knows: reservations, quotas (gpushare.aliyun.com/quota), its settings"
)
TRY_IT: Final = "Create the pod: `gpushare explain pod NAME` says why it is Pending."
GROUPS_UNREAD: Final = "PodGroups of the pods to evict"


class Questions:
    """Asks ``found``, an extender, or uses lists; ``why_not`` is why no extender is asked."""

    def __init__(self, kube: Kube, found: Extender | None, why_not: str) -> None:
        self.why_not = why_not
        self._kube, self._extender = kube, found

    async def explain(self, pod: Pod, shown: int) -> explain.PodView:
        """Explain why the pod is where it is. ApiError if the nodes cannot be read."""
        if self._extender is None:
            cluster = await listed_cluster(self._kube)
            if key_of(pod) is not None:
                cluster.gangs = await self._gangs(cluster, pod.metadata.namespace)
            view = run_all(explain.explain(cluster, pod, None, now=0.0, shown=shown))
            if view.outlook is not None:
                view.outlook.not_checked.append(UNKNOWN_HERE)
            return view
        meta = pod.metadata
        page = f"{EXTENDER_PREFIX}/explain/{meta.namespace}/{meta.name}?nodes={shown}"
        return self._extender.decoded(await self._extender.get(page), explain.PodView)

    async def gang_what_if(self, body: Mapping[str, Any], *, evict: bool = False) -> what_if.Answer:
        """Say whether a gang would start as a whole. SettingsError if the pods are no gang.

        With ``evict``, also which pods would be evicted for it.
        """
        body = {**body, **_evict(asked=evict)}
        try:
            question = gang_what_if.read_question(msgspec.json.encode(body))
        except (TypeError, *UNDECODABLE) as err:  # YAML has keys that JSON does not have
            raise SettingsError(f"not the pods of a gang: {err}") from err
        if self._extender is not None:
            try:
                text = await self._extender.post(f"{EXTENDER_PREFIX}/what-if/gang", body)
                return self._extender.decoded(text, what_if.Answer)
            except NotFound as err:  # an earlier version
                self.why_not = str(err)
            except ApiError as err:
                raise _refused(err) from err
        found = run_all(gang_what_if.answer(await self._cluster(), question))
        found.not_checked += [UNKNOWN_HERE, *([GROUPS_UNREAD] if evict else [])]
        return found

    async def what_if(
        self, pod: Mapping[str, Any], count: int, *, evict: bool = False
    ) -> what_if.Answer:
        """Say where ``count`` of the pod would fit. SettingsError if it is not a pod.

        With ``evict``, also which pods would be evicted for them.
        """
        body = {"pod": pod, "count": count, **_evict(asked=evict)}
        question, extras = read_question(body)
        if self._extender is None:
            cluster = await self._cluster()
            found = run_all(what_if.answer_with_evictions(cluster, question, extras))
            found.not_checked += [UNKNOWN_HERE, *([GROUPS_UNREAD] if evict else [])]
            return found
        try:
            text = await self._extender.post(f"{EXTENDER_PREFIX}/what-if", body)
        except ApiError as err:
            raise _refused(err) from err
        return self._extender.decoded(text, what_if.Answer)

    async def _cluster(self) -> ListedCluster:
        try:
            return await listed_cluster(self._kube)
        except Lacking as err:
            raise _refused(err) from err

    async def _gangs(self, cluster: ListedCluster, namespace: str) -> GangStates:
        pods = await all_pods(self._kube, namespace)  # also those without GPU memory
        unit = cluster.unit_mib
        return (await gangs_of(self._kube, pods, unit, namespace, world=cluster)).states


def read_question(body: Mapping[str, Any]) -> tuple[what_if.Question, what_if.Extras]:
    """Read what-if's question about a pod. SettingsError if it is not a pod."""
    try:
        encoded = msgspec.json.encode(body)
        question, extras = what_if.read_question(encoded), what_if.read_extras(encoded)
    except (TypeError, *UNDECODABLE) as err:  # YAML has keys that JSON does not have
        raise SettingsError(f"not a pod: {err}") from err
    if not question.pod.containers:
        raise SettingsError("not a pod: it has no spec.containers")
    return question, extras


async def listed_cluster(kube: Kube) -> ListedCluster:
    """List all nodes and pods; Lacking with the rights that are missing."""
    return ListedCluster(*await nodes_and_pods(kube))


async def nodes_and_pods(kube: Kube) -> tuple[list[Node], list[Pod]]:
    """List all nodes and pods. ApiError, which names all missing rights."""
    rights: list[Right] = []
    nodes: list[Node] = []
    pods: list[Pod] = []
    try:
        nodes = await all_nodes(kube)
    except Lacking as err:
        rights += err.rights
    try:
        pods = await all_pods(kube)
    except Lacking as err:
        rights += err.rights
    if rights:
        raise Lacking(*rights)
    return nodes, pods


def _refused(err: ApiError) -> GpushareError:
    """Return what to raise for what an extender or the API server answers to a what-if."""
    if err.code == HTTPStatus.BAD_REQUEST:
        return SettingsError(str(err))
    if err.code != HTTPStatus.FORBIDDEN:
        return err
    why = err.short if isinstance(err, Lacking) else str(err)
    text = f"what-if looks at all nodes and pods, and {why}. {TRY_IT}"
    return ApiError(text, code=err.code)


def _evict(*, asked: bool) -> dict[str, bool]:
    """Return the part of a question that an extender of an earlier version rejects."""
    return {"evict": True} if asked else {}
