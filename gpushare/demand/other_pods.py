"""Tell how much of the GPU nodes pods without GPU memory are going to take (pure).

kube-scheduler places them where the largest part of a node's CPU and memory is free: its scores
LeastAllocated and BalancedAllocation (pkg/scheduler/framework/plugins/noderesources) add up to the
smaller of both parts. So they fill nodes like water: all nodes of which more is free come down to
the same level.
"""

from typing import Final, NamedTuple

# A level is the next higher multiple of 1 / _STEPS, so that it seldom changes.
_STEPS: Final = 20
# Where pods come and go, no node is filled up for good. So at least this part of the pods that
# came must have stayed, among those that came with the last quarter of the GPU memory in use.
_STAYING: Final = 0.9
_LATELY: Final = 0.25
_FEW: Final = 0.01  # of all GPU memory: with less, it is hardly known how many others come with it


class NodeUse(NamedTuple):
    """What a node has: ``units`` of GPU memory, of which ``used`` are, and ``cpu`` in thousandths.

    ``free`` is the part of its CPU that is free, or of its memory if that is less. ``others`` is
    the CPU of pods without GPU memory; their part of the memory counts as CPU if that is more.
    """

    units: int
    used: int
    cpu: int
    free: float
    others: float


class OtherPods:
    """Compares successive looks at all nodes with GPUs: ``begin``, ``add`` each node, ``level``.

    What is on a node that was not seen before has not come.
    """

    def __init__(self) -> None:
        self._before: dict[str, NodeUse] = {}
        self._came = self._went = self._used = 0.0  # CPU of others, CPU of others, GPU memory
        self.begin()

    def begin(self) -> None:
        """Begin to look."""
        self._now: dict[str, NodeUse] = {}
        self._cpu = [0.0] * (_STEPS + 1)  # of nodes, by how much of them is free, in steps
        self._free = [0.0] * (_STEPS + 1)
        self._all_units = self._all_used = 0
        self._more = self._less = self._more_used = 0.0

    def add(self, name: str, now: NodeUse) -> None:
        """Look at a node."""
        self._now[name] = now
        self._all_units += now.units
        self._all_used += now.used
        step = min(_STEPS, max(0, int(now.free * _STEPS)))
        self._cpu[step] += now.cpu
        self._free[step] += now.cpu * now.free
        before = self._before.get(name)
        if before is not None:
            self._more += max(0.0, now.others - before.others)
            self._less += max(0.0, before.others - now.others)
            self._more_used += max(0, now.used - before.used)

    @property
    def room(self) -> float:
        """The part of the GPU memory that is free on all nodes of this look."""
        return 1 - self._all_used / self._all_units if self._all_units else 1.0

    def level(self) -> float:
        """Return what pods without GPU memory leave of a node that is free, as a part of it.

        It is 1.0 if none come. Otherwise as many more are expected with each unit of GPU memory
        that is free as came with those that were used lately.
        """
        self._before = self._now
        self._came += self._more
        self._went += self._less
        self._used += self._more_used
        if self._used > _LATELY * self._all_used:
            self._came, self._went, self._used = self._came / 2, self._went / 2, self._used / 2
        stayed = self._came - self._went
        if stayed <= 0 or stayed < _STAYING * self._came:
            return 1.0
        with_each = stayed / max(1, self._used, _FEW * self._all_units)
        to_come = with_each * (self._all_units - self._all_used)
        cpu = free = 0.0
        for step in range(_STEPS, -1, -1):
            cpu += self._cpu[step]
            free += self._free[step]
            if free - cpu * step / _STEPS > to_come:
                return min(1.0, (step + 1) / _STEPS)
        return 0.0
