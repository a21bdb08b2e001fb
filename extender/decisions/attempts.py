"""The failed attempts of one pod: on which nodes, and what to offer next (pure).

A pod that was offered nodes and comes again failed later in that attempt: a volume, another plugin,
a bind. With the same few nodes it might fail forever. So these nodes come last in its next
attempts, those that were best in an attempt after all others, and after some failed attempts the
pod is offered all nodes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

MAX_TRIED: Final = 256  # nodes per pod; then the list starts over
REMEMBERED_SECONDS: Final = 600.0  # kube-scheduler retries after 300 s at the latest

NONE_TRIED: Final[Mapping[str, int]] = MappingProxyType({})


@dataclass(slots=True)
class Attempts:
    """``tried`` has the nodes of failed attempts; those with a higher number come later.

    ``last`` are the nodes that the current attempt was offered, the best first.
    """

    count: int = 0
    tried: dict[str, int] = field(default_factory=dict)
    last: tuple[str, ...] = ()
    at: float = 0.0

    def begin(self) -> None:
        """Begin another attempt: the last one, with its nodes ``last``, has failed."""
        if len(self.tried) > MAX_TRIED:
            self.tried.clear()
        for name in self.last:
            self.tried.setdefault(name, 1)
        self.tried[self.last[0]] = 1 + self.count
        self.last = ()

    @property
    def failed(self) -> int:
        """The number of failed attempts, without the current one."""
        return self.count - bool(self.last)
