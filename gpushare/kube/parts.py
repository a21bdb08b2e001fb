"""Equal parts of pods are kept once: 50,000 pods then take a quarter of the memory.

Pods of one Deployment have the same tolerations, resources, variables, labels and conditions, and
pods of ours the same annotation names. Objects from the API are never changed in place, so that
sharing them shows nowhere.
"""

from collections.abc import Hashable
from typing import Any, Final, TypeVar

from msgspec.structs import force_setattr

from gpushare.objects import Container, Pod, Resources

MAX_PARTS: Final = 50_000  # then the table starts anew: parts that nobody has any more go with it
SHORT: Final = 16  # longer values of annotations are times and UUIDs, of which no two are equal

H = TypeVar("H", bound=Hashable)
_Words = dict[str, str]


class Parts:
    """The parts that have been seen so far."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Any] = {}

    def share(self, pod: Pod) -> None:
        """Let a pod that was just decoded have the parts that others have already."""
        if len(self._known) > MAX_PARTS:
            self._known = {}
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
            force_setattr(container, "resources", self._known.setdefault(key, found))

    def _one(self, part: H) -> H:
        found: H = self._known.setdefault(part, part)
        return found

    def _words(self, words: _Words) -> _Words:
        found: _Words = self._known.setdefault((dict, *words.items()), words)
        return found

    def _named(self, words: _Words) -> _Words:
        return {
            self._one(key): self._one(value) if len(value) <= SHORT else value
            for key, value in words.items()
        }


def _items(amounts: dict[str, str | int] | None) -> Hashable:
    if amounts is None:
        return None
    # "1" and 1 are not equal, but 1 and True are: the kind is a part of the key.
    return tuple((name, type(value), value) for name, value in amounts.items())
