"""Read the API server's question about a new pod, and write the answer (pure).

The API server asks by an AdmissionReview. Only what a decision needs is decoded. The answer always
allows the pod, with or without a patch.
"""

import base64
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from gpushare.contract import RESOURCE_COUNT, RESOURCE_MEMORY

API_VERSION: Final = "admission.k8s.io/v1"
KIND: Final = "AdmissionReview"


class Amounts(msgspec.Struct, frozen=True):
    """Amounts of our resources in limits or requests."""

    memory: str | int | None = msgspec.field(name=RESOURCE_MEMORY, default=None)
    count: str | int | None = msgspec.field(name=RESOURCE_COUNT, default=None)


class _Resources(msgspec.Struct, frozen=True):
    limits: Amounts | None = None
    requests: Amounts | None = None


class Container(msgspec.Struct, frozen=True):
    resources: _Resources | None = None

    @property
    def amounts(self) -> Sequence[Amounts]:
        """Return limits and requests that there are."""
        found = self.resources
        both = () if found is None else (found.limits, found.requests)
        return [each for each in both if each is not None]


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


class Question(msgspec.Struct, frozen=True):
    """``pod`` is the JSON of a pod that is being created; None if the question is another one."""

    uid: str
    pod: msgspec.Raw | None

    def unchanged(self) -> Answer:
        return Answer(_Response(self.uid, allowed=True))

    def changed(self, *operations: Mapping[str, Any]) -> Answer:
        """Return the answer that applies operations of a JSON patch (RFC 6902) to the pod."""
        patch = base64.b64encode(encode(operations)).decode()
        return Answer(_Response(self.uid, allowed=True, patch_type="JSONPatch", patch=patch))


_PODS: Final = _Resource("", "v1", "pods")
_decode: Final = msgspec.json.Decoder(_Asked).decode
encode: Final = msgspec.json.Encoder().encode


def read(review: bytes) -> Question:
    """Return the question; raise an error of ``gpushare.errors.UNDECODABLE`` if it has none."""
    asked = _decode(review)
    if asked.api_version != API_VERSION:
        raise msgspec.ValidationError(f"apiVersion is {asked.api_version:.63}, not {API_VERSION}")
    request = asked.request
    is_creation = request.operation == "CREATE" and request.resource == _PODS
    return Question(
        request.uid, request.object if is_creation and not request.sub_resource else None
    )
