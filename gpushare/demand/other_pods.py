"""Tell how much of the GPU nodes pods without GPU memory are going to take (pure).

kube-scheduler places them where the largest part of a node's CPU and memory is free: its scores
LeastAllocated and BalancedAllocation (pkg/scheduler/framework/plugins/noderesources) add up to the
smaller of both parts. So they fill nodes like water: all nodes of which more is free come down to
the same level.
"""

from math import ceil
from typing import Final, NamedTuple

# A level is a multiple of 1 / _STEPS, rounded up, and stays while it is wrong by less than
# _MARGIN, so that it seldom changes.
_STEPS: Final = 20
_MARGIN: Final = 0.01
_NEGLIGIBLE: Final = 1e-9  # of a step: floating-point numbers are rounded
_LEAST: Final = 0.005  # of all CPU: fewer pods without GPU memory do not matter
# Where pods come and go, no node is filled up for good. So such a part of the pods that came must
# have stayed until more are expected, and such a part as long as they are.
_STAYED: Final = 0.95
_STAYING: Final = 0.9
_LATELY: Final = 0.25  # of the GPU memory in use: what came with it counts, earlier pods count half
_FEW: Final = 0.01  # of all GPU memory: with less, it is hardly known how many others come with it


class NodeUse(NamedTuple):
    """What a node has of GPU memory, how much of it pods use, and its CPU, in thousandths.

    ``free`` is the part of its CPU that is free, or of its memory if that is less. ``others`` is
    the CPU of pods without GPU memory; their part of the memory counts as CPU if that is more.
    """

    units: int
    used: int
    cpu: int
    free: float
    others: float


class OtherPods:
    """Compares successive looks at the nodes with GPUs: ``begin``, ``add`` each node, ``level``.

    Pods on a node that was not seen before have not come.
    """

    def __init__(self) -> None:
        self._before: dict[str, NodeUse] = {}
        self._came = self._went = self._used = 0.0  # CPU of others, CPU of others, GPU memory
        self._level = 1.0
        self.begin()

    def begin(self) -> None:
        """Begin to look."""
        self._now: dict[str, NodeUse] = {}
        self._cpu = [0.0] * (_STEPS + 1)  # of nodes, by how much of them is free, in steps
        self._free = [0.0] * (_STEPS + 1)
        self._all_units = self._all_used = 0
        self._new_came = self._new_went = self._new_used = 0.0

    def add(self, name: str, now: NodeUse) -> None:
        """Look at a node."""
        self._now[name] = now
        self._all_units += now.units
        self._all_used += now.used
        free = max(0.0, now.free)
        step = min(_STEPS, int(free * _STEPS))
        self._cpu[step] += now.cpu
        self._free[step] += now.cpu * free
        before = self._before.get(name)
        if before is not None:
            self._new_came += max(0.0, now.others - before.others)
            self._new_went += max(0.0, before.others - now.others)
            self._new_used += max(0, now.used - before.used)

    @property
    def room(self) -> float:
        """The part of the GPU memory that is free on all nodes of this look."""
        return max(0.0, 1 - self._all_used / max(1, self._all_units))

    def level(self) -> float:
        """Return the free part down to which pods without GPU memory will fill nodes; 1.0 if none.

        As many more are expected with each unit of GPU memory that is free as came with those that
        were used lately.
        """
        self._before = self._now
        self._came += self._new_came
        self._went += self._new_went
        self._used += self._new_used
        if self._used > _LATELY * self._all_used or self._came > sum(self._cpu):
            self._came, self._went, self._used = self._came / 2, self._went / 2, self._used / 2
        stayed = self._came - self._went
        needed = _STAYED if self._level == 1.0 else _STAYING
        level = self._expected(stayed) if stayed >= needed * self._came else 1.0
        is_kept = self._level - 1 / _STEPS - _MARGIN < level <= self._level + _MARGIN
        if level == 1.0 or not is_kept:
            self._level = ceil(level * _STEPS - _NEGLIGIBLE) / _STEPS
        return self._level

    def _expected(self, stayed: float) -> float:
        """Return the level if so much more of the nodes' CPU was taken lately than before."""
        with_each = stayed / max(1, self._used, _FEW * self._all_units)
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
