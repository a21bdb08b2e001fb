"""Keep equal parts of pods once: 50,000 pods then need a quarter of the memory.

Pods of one Deployment have the same tolerations, resources, variables and conditions, and pods that
use gpushare the same annotation names. Objects from the API are never changed in place, so sharing
their parts has no effect.
"""

from collections.abc import Hashable
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import force_setattr

from gpushare.objects.model import Container, Pod, Resources

# Memory of all parts together. Beyond it the table is cleared, including parts that no pod has any
# longer. 50,000 pods of 100 Deployments have 4 MiB of JSON.
MOST_BYTES: Final = 64 * 2**20
SHORT: Final = 16  # longer values of annotations are times and UUIDs, which are unique
_ENTRY_BYTES: Final = 100  # of the table, for any part
_BYTES_OF_JSON: Final = 12  # of memory, for one byte of many small resources

H = TypeVar("H", bound=Hashable)
_Words = dict[str, str]
_encode = msgspec.json.Encoder().encode


class Interner:
    """The parts seen so far, which take ``bytes`` of memory."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Any] = {}
        self.bytes = 0

    def share(self, pod: Pod) -> None:
        """Replace parts of a newly decoded pod by equal parts of earlier pods."""
        if self.bytes > MOST_BYTES:
            self._known, self.bytes = {}, 0
        meta, spec, status = pod.metadata, pod.spec, pod.status
        force_setattr(meta, "namespace", self._one(meta.namespace))
        force_setattr(meta, "creation_timestamp", self._one(meta.creation_timestamp))
        force_setattr(meta, "owner_references", self._one(meta.owner_references))
        if meta.labels:
            force_setattr(meta, "labels", self._words(meta.labels))
        if meta.annotations:
            force_setattr(meta, "annotations", self._named(meta.annotations))
        force_setattr(spec, "tolerations", self._one(spec.tolerations))
        force_setattr(status, "conditions", self._one(status.conditions))
        for container in (*pod.init_containers, *pod.containers):
            self._share_container(container)

    def _share_container(self, container: Container) -> None:
        force_setattr(container, "name", self._one(container.name))
        force_setattr(container, "env", self._one(container.env))
        found = container.resources
        if found is not None:
            key = (Resources, _items(found.limits), _items(found.requests))
            force_setattr(container, "resources", self._known_as(key, found))

    def _one(self, part: H) -> H:
        found: H = self._known_as(part, part)
        return found

    def _words(self, words: _Words) -> _Words:
        found: _Words = self._known_as((dict, *words.items()), words)
        return found

    def _named(self, words: _Words) -> _Words:
        return {
            self._one(key): self._one(value) if len(value) <= SHORT else value
            for key, value in words.items()
        }

    def _known_as(self, key: Hashable, part: Any) -> Any:
        before = len(self._known)
        found = self._known.setdefault(key, part)
        if len(self._known) > before:
            self.bytes += _ENTRY_BYTES + _BYTES_OF_JSON * len(_encode(part))
        return found


def _items(amounts: dict[str, str | int] | None) -> Hashable:
    if amounts is None:
        return None
    # "1" and 1 are not equal, but 1 and True are: the kind is a part of the key.
    return tuple((name, type(value), value) for name, value in amounts.items())
