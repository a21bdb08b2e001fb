"""What identifies a gang, and what its PodGroup says."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple, Self

# Of one gang: a plan of this many members takes tens of milliseconds, and each of them may need a
# node of its own. At 8 GPUs a member it uses 8,192 GPUs.
MOST_MEMBERS: Final = 1024


class Source(StrEnum):
    """What makes pods a gang. A pod may have several: the first in this order counts.

    ``NATIVE``: spec.schedulingGroup and a PodGroup of scheduling.k8s.io, a part of Kubernetes.
    ``POD_GROUP``: a label and a PodGroup of scheduling.x-k8s.io, coscheduling's resource.
    ``LABELS``: name and minimum in labels, as in the first versions of coscheduling.
    ``KUEUE``: Kueue's label and annotation for groups of plain pods.
    """

    NATIVE = "native"
    POD_GROUP = "pod-group"
    LABELS = "labels"
    KUEUE = "kueue"


class GroupKey(NamedTuple):
    """Identifies a gang: equal names in two namespaces, or of two sources, are two gangs."""

    namespace: str
    source: Source
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.source}/{self.name}"

    @classmethod
    def parsed(cls, text: str) -> Self:
        """Return the key whose ``str`` this is; ValueError for any other text."""
        namespace, source, name = text.split("/", 2)
        return cls(namespace, Source(source), name)


@dataclass(frozen=True, slots=True)
class PodGroup:
    """A PodGroup of either kind, with the parts that gpushare reads.

    ``minimum`` is None if the object states none, or none from 1 to MOST_MEMBERS. A native group
    with policy ``basic`` has minimum 1: its members are placed one by one. ``timeout_seconds`` is
    None, and ``zone_key`` is empty, if the object states none. ``priority`` is that of the native
    kind; the other kind has none.
    """

    key: GroupKey
    minimum: int | None
    timeout_seconds: int | None = None
    zone_key: str = ""
    priority: int | None = None
