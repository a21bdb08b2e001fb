"""Decide which new pods get the second kube-scheduler (pure).

The API server asks about pods that are created, by an AdmissionReview. Only what the decision needs
is decoded. A pod that names another scheduler than the default one, or a node, never changes.
"""

import base64
from typing import Final

import msgspec

from gpushare.contract import RESOURCE_COUNT, RESOURCE_MEMORY

API_VERSION: Final = "admission.k8s.io/v1"
KIND: Final = "AdmissionReview"
# The API server has set this name if the pod's author wrote none.
DEFAULT_SCHEDULER: Final = "default-scheduler"


class _Amounts(msgspec.Struct, frozen=True):
    memory: str | int | None = msgspec.field(name=RESOURCE_MEMORY, default=None)
    count: str | int | None = msgspec.field(name=RESOURCE_COUNT, default=None)

    @property
    def are_given(self) -> bool:
        return self.memory is not None or self.count is not None


class _Resources(msgspec.Struct, frozen=True):
    limits: _Amounts | None = None
    requests: _Amounts | None = None

    @property
    def have_gpu_memory(self) -> bool:
        return any(each is not None and each.are_given for each in (self.limits, self.requests))


class _Container(msgspec.Struct, frozen=True):
    resources: _Resources | None = None


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    scheduler_name: str = DEFAULT_SCHEDULER
    node_name: str | None = None
    containers: tuple[_Container, ...] | None = None
    init_containers: tuple[_Container, ...] | None = None


class _Pod(msgspec.Struct, frozen=True):
    spec: _Spec = _Spec()


class _Resource(msgspec.Struct, frozen=True):
    group: str = ""
    version: str = ""
    resource: str = ""


class _Request(msgspec.Struct, frozen=True, rename="camel"):
    uid: str
    operation: str
    resource: _Resource
    sub_resource: str | None = None
    object: msgspec.Raw = msgspec.Raw(b"null")


class _Response(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    uid: str
    allowed: bool
    patch_type: str | None = None
    patch: str | None = None


class _Asked(msgspec.Struct, frozen=True, tag_field="kind", tag=KIND, rename="camel"):
    request: _Request
    api_version: str


class Answer(msgspec.Struct, frozen=True, tag_field="kind", tag=KIND, rename="camel"):
    """The API server's form of the decision, which always allows the pod."""

    response: _Response
    api_version: str = API_VERSION

    @property
    def changes(self) -> bool:
        return self.response.patch is not None


_PODS: Final = _Resource("", "v1", "pods")
_decode_asked: Final = msgspec.json.Decoder(_Asked).decode
_decode_pod: Final = msgspec.json.Decoder(_Pod).decode
encode: Final = msgspec.json.Encoder().encode


def decide(review: bytes, name: str) -> Answer:
    """Return the response that sets ``name`` as the scheduler, or one that changes nothing.

    Raise an error of ``gpushare.errors.UNDECODABLE`` if the review cannot be read.
    """
    asked = _decode_asked(review)
    if asked.api_version != API_VERSION:
        raise msgspec.ValidationError(f"apiVersion is {asked.api_version:.63}, not {API_VERSION}")
    request = asked.request
    if request.operation != "CREATE" or request.resource != _PODS or request.sub_resource:
        return Answer(_Response(request.uid, allowed=True))
    if not _is_meant(_decode_pod(request.object).spec):
        return Answer(_Response(request.uid, allowed=True))
    operation = {"op": "add", "path": "/spec/schedulerName", "value": name}
    patch = base64.b64encode(encode([operation])).decode()
    return Answer(_Response(request.uid, allowed=True, patch_type="JSONPatch", patch=patch))


def _is_meant(spec: _Spec) -> bool:
    containers = (*(spec.containers or ()), *(spec.init_containers or ()))
    is_default = spec.scheduler_name == DEFAULT_SCHEDULER and not spec.node_name
    found = (each.resources for each in containers if each.resources is not None)
    return is_default and any(each.have_gpu_memory for each in found)
