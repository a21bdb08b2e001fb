"""Reads a pod of the watch: in full if gpushare decides about it, otherwise only what it uses."""

import msgspec

from gpushare.annotations.pod_annotations import asks_for_share
from gpushare.contract import RESOURCES_BEGIN
from gpushare.errors import RequestError
from gpushare.groups.sources import key_of
from gpushare.ledger.holds import Requests
from gpushare.objects.brief_pod import read_brief
from gpushare.objects.model import ObjectMeta, Pod
from gpushare.objects.pod_reader import read_pod
from gpushare.placement.node_resources import as_requests, requests_of


class PodUse(msgspec.Struct, gc=False, frozen=True):
    """What a pod uses of its ``node`` about which gpushare decides nothing.

    ``metadata`` has only uid and version. ``requests`` are None if they cannot be read.
    """

    metadata: ObjectMeta
    node: str
    requests: Requests | None
    is_terminal: bool

    @property
    def uid(self) -> str:
        return self.metadata.uid


def read_live_pod(body: memoryview | msgspec.Raw) -> Pod | PodUse:
    """Return the pod in a JSON object. Raises one of UNDECODABLE."""
    if RESOURCES_BEGIN in bytes(body):
        pod = read_pod(body)
        if decides_about(pod):
            return pod
    brief = read_brief(body)
    if decides_about(brief):
        pod = read_pod(body)
        if decides_about(pod):
            return pod
    return _use_of(brief)


def decides_about(pod: Pod) -> bool:
    """Return whether a pod requests GPU memory, belongs to a gang or has our gate."""
    return asks_for_share(pod) or pod.has_our_gate or key_of(pod) is not None


def _use_of(brief: Pod) -> PodUse:
    meta = brief.metadata
    try:
        requests = as_requests(requests_of(brief)) if brief.node else ()
    except RequestError:
        requests = None
    return PodUse(
        ObjectMeta(uid=meta.uid, resource_version=meta.resource_version),
        brief.node,
        requests,
        brief.is_terminal,
    )
