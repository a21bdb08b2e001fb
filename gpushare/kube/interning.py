"""Keep equal parts of pods once: 50,000 pods then need a quarter of the memory.

Pods of one Deployment have the same tolerations, resources, variables and conditions, and pods that
use gpushare the same annotation names. Objects from the API are never changed in place, so sharing
their parts has no effect.
"""

from collections.abc import Hashable, Iterable
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import force_setattr

from gpushare.contract import ANNOTATION_CARDS, ANNOTATION_RUNNING_ON
from gpushare.objects.model import Container, Pod, Resources

# Memory of all parts together. Beyond it the table is cleared, including parts that no pod has any
# longer. 50,000 pods of 100 Deployments have 4 MiB of JSON.
MOST_BYTES: Final = 64 * 2**20
SHORT: Final = 16  # longer values of annotations are mostly times, which are unique
_ENTRY_BYTES: Final = 100  # of the table, for any part
_BYTES_OF_JSON: Final = 12  # of memory, for one byte of many small resources
# Equal for pods that have the same cards.
_OF_CARDS: Final = frozenset({ANNOTATION_CARDS, ANNOTATION_RUNNING_ON})
_OF_SPEC: Final = (
    "node_name",
    "tolerations",
    "preemption_policy",
    "runtime_class_name",
    "scheduler_name",
)

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
        meta, spec = pod.metadata, pod.spec
        self._share_fields(meta, ("namespace", "creation_timestamp", "owner_references"))
        if meta.labels:
            force_setattr(meta, "labels", self._words(meta.labels))
        if meta.annotations:
            force_setattr(meta, "annotations", self._named(meta.annotations))
        self._share_fields(spec, _OF_SPEC)
        for name in ("containers", "init_containers"):
            if found := getattr(spec, name):
                force_setattr(spec, name, self._containers(found))
        self._share_fields(pod, ("status",))

    def _share_fields(self, of: msgspec.Struct, names: Iterable[str]) -> None:
        for name in names:
            force_setattr(of, name, self._one(getattr(of, name)))

    def _containers(self, containers: tuple[Container, ...]) -> tuple[Container, ...]:
        for each in containers:
            if (found := each.resources) is not None:
                key = (Resources, _items(found.limits), _items(found.requests))
                force_setattr(each, "resources", self._known_as(key, found))
        # Resources cannot be hashed; those that are shared are known as long as this key.
        keys = (
            (id(c.resources), c.name, c.restart_policy, c.env, c.ports, c.env_from)
            for c in containers
        )
        shared: tuple[Container, ...] = self._known_as((Container, *keys), containers)
        return shared

    def _one(self, part: H) -> H:
        found: H = self._known_as(part, part)
        return found

    def _words(self, words: _Words) -> _Words:
        found: _Words = self._known_as((dict, *words.items()), words)
        return found

    def _named(self, words: _Words) -> _Words:
        return {
            self._one(key): self._one(value) if len(value) <= SHORT or key in _OF_CARDS else value
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
