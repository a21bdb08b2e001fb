"""Reads a pod of the watch: in full if gpushare decides about it, otherwise only what it uses."""

from collections.abc import Hashable
from typing import Final

import msgspec

from gpushare.annotations.pod_annotations import asks_for_share
from gpushare.contract import RESOURCES_BEGIN
from gpushare.errors import RequestError
from gpushare.groups.sources import key_of
from gpushare.objects.brief_pod import BriefPod, read_brief
from gpushare.objects.model import TERMINAL_PHASES, ObjectMeta, Pod, belong_to_node
from gpushare.objects.pod_reader import read_pod
from gpushare.objects.pod_requests import Requests, as_requests, may_use_gpus, requests_of

MOST_KNOWN: Final = 2048  # different amounts of pods; 50,000 pods have a few hundred
LARGE_BYTES: Final = 16 * 1024  # of JSON of a pod whose amounts are not kept


class PodUse(msgspec.Struct, gc=False, frozen=True):
    """What a pod uses of its ``node`` about which gpushare decides nothing.

    ``metadata`` has only uid and version. ``requests`` are None if they cannot be read.
    ``is_other``: kube-scheduler alone chose the node, for a pod without GPU.
    """

    metadata: ObjectMeta
    node: str
    requests: Requests | None
    is_terminal: bool
    is_other: bool

    @property
    def uid(self) -> str:
        return self.metadata.uid


class LivePods:
    """Reads pods, those with equal amounts for the cost of comparing these."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Requests | None] = {}

    def read(self, body: memoryview | msgspec.Raw) -> Pod | PodUse:
        """Return the pod in a JSON object. Raises one of UNDECODABLE."""
        if RESOURCES_BEGIN in bytes(body):
            pod = read_pod(body)
            if decides_about(pod):
                return pod
        brief = read_brief(body)
        if brief.may_be_member:
            pod = read_pod(body)
            if decides_about(pod):
                return pod
        meta, node = brief.metadata, brief.spec.node_name or ""
        requests = self._requests_of(brief, len(body)) if node else ()
        names = (name for name, _ in requests or ())
        uses_gpus = may_use_gpus(names, has_claims=brief.has_claims)
        return PodUse(
            ObjectMeta(uid=meta.uid, resource_version=meta.resource_version),
            node,
            requests,
            is_terminal=brief.status.phase in TERMINAL_PHASES,
            is_other=not (uses_gpus or belong_to_node(meta.owner_references)),
        )

    def _requests_of(self, brief: BriefPod, size: int) -> Requests | None:
        if size > LARGE_BYTES:
            return _requests_of(brief)
        amounts = brief.amounts
        if amounts not in self._known:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[amounts] = _requests_of(brief)
        return self._known[amounts]


def _requests_of(brief: BriefPod) -> Requests | None:
    try:
        return as_requests(requests_of(brief.pod))
    except RequestError:
        return None


def decides_about(pod: Pod) -> bool:
    """Return whether a pod requests GPU memory, belongs to a gang or has our gate."""
    return asks_for_share(pod) or pod.has_our_gate or key_of(pod) is not None
