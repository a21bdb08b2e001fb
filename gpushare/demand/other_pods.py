"""Tell how much of the GPU nodes pods without GPU memory are going to take (pure).

kube-scheduler places them where the largest part of a node's CPU and memory is free: its scores
LeastAllocated and BalancedAllocation (pkg/scheduler/framework/plugins/noderesources) add up to the
smaller of both parts. So they fill nodes like water: all nodes of which more is free come down to
the same level.
"""

from collections.abc import Mapping
from math import ceil
from typing import Final, NamedTuple

import msgspec

# A level is a multiple of 1 / _STEPS, rounded up, and stays while it is wrong by less than
# _MARGIN, so that it seldom changes.
_STEPS: Final = 20
_MARGIN: Final = 0.01
_NEGLIGIBLE: Final = 1e-9  # of a step: floating-point numbers are rounded
_LEAST: Final = 0.005  # of all CPU: fewer pods without GPU memory do not matter
# Of the GPU memory in use: since the look with which one is compared, pods used that much or twice.
_LATELY: Final = 0.5
_STAYED: Final = 0.95  # of what others had then: with less they come and go, and fill no node
# Of all GPU memory: with less, it is hardly known how many others come with it. So a few pods
# that come at a quiet time do not count for many.
_FEW: Final = 0.05


class NodeUse(msgspec.Struct, gc=False, frozen=True):
    """What a node has of GPU memory, how much of it pods use, and its CPU, in thousandths.

    ``free`` is the part of its CPU that is free, or of its memory if that is less; None if pods
    without GPU memory cannot come. ``others`` is the CPU that these have; their part of the memory
    counts as CPU if that is more.
    """

    units: int
    used: int
    cpu: int
    free: float | None
    others: float


class _Look(NamedTuple):
    """``others`` is the CPU of those of all ``nodes``, ``used`` the GPU memory ever used."""

    nodes: Mapping[str, NodeUse]
    others: float
    used: int


class OtherPods:
    """Compares successive looks at the nodes with GPUs: ``begin``, ``add`` each node, ``level``.

    A look is compared with an earlier one, and only sums count: a pod that moves, or ends and comes
    again, has not come. Nor have pods on a node that was not there then.
    """

    def __init__(self) -> None:
        # The look to compare with, the one that will take its place, and the last one.
        self._then = self._later = self._before = _Look({}, 0.0, 0)
        self._level = 1.0
        self.begin()

    def begin(self) -> None:
        """Begin to look."""
        self._nodes: dict[str, NodeUse] = {}
        self._cpu = [0.0] * (_STEPS + 1)  # of nodes, by how much of them is free, in steps
        self._free = [0.0] * (_STEPS + 1)
        self._all_units = self._all_used = 0
        self._used = self._before.used
        self._others = self._of_then = self._stayed = 0.0  # CPU

    def add(self, name: str, now: NodeUse | None) -> None:
        """Look at a node; None: it is as before as far as is known."""
        before, then = self._before.nodes.get(name), self._then.nodes.get(name)
        now = now or before
        if now is None:
            return
        self._nodes[name] = now
        self._others += now.others
        if before is not None:
            self._used += max(0, now.used - before.used)
        if then is not None:
            self._of_then += now.others
            self._stayed += min(now.others, then.others)
        self._all_units += now.units
        self._all_used += now.used
        if now.free is not None:
            free = max(0.0, now.free)
            step = min(_STEPS, int(free * _STEPS))
            self._cpu[step] += now.cpu
            self._free[step] += now.cpu * free

    @property
    def room(self) -> float:
        """The part of the GPU memory that is free on all nodes of this look."""
        return max(0.0, 1 - self._all_used / max(1, self._all_units))

    def level(self) -> float:
        """Return the free part down to which pods without GPU memory will fill nodes; 1.0 if none.

        As many more are expected with each unit of GPU memory that is free as came since then with
        each that pods began to use.
        """
        then = self._then
        level = self._expected() if self._stayed >= _STAYED * then.others else 1.0
        self._before = _Look(self._nodes, self._others, self._used)
        if not then.nodes or self._used - self._later.used > _LATELY * self._all_used:
            self._then, self._later = self._later, self._before
        is_kept = self._level - 1 / _STEPS - _MARGIN < level <= self._level + _MARGIN
        if level == 1.0 or not is_kept:
            self._level = ceil(level * _STEPS - _NEGLIGIBLE) / _STEPS
        return self._level

    def _expected(self) -> float:
        then = self._then
        came = self._of_then - then.others
        with_each = came / max(1, self._used - then.used, _FEW * self._all_units)
        to_come = with_each * max(0, self._all_units - self._all_used)
        if to_come <= _LEAST * sum(self._cpu):
            return 1.0
        cpu = free = 0.0
        for step in range(_STEPS, -1, -1):
            cpu += self._cpu[step]
            free += self._free[step]
            if free - cpu * step / _STEPS > to_come:
                return min(1.0, (free - to_come) / cpu)
        return 0.0
