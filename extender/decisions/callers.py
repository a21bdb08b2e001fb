"""Know which schedulers ask this extender about their pods (pure)."""

from collections.abc import Iterable
from typing import Final

from gpushare.objects.model import Pod

# The API server sets this name if the pod's author wrote none.
DEFAULT_SCHEDULER: Final = "default-scheduler"


class Callers:
    """The schedulers of the configuration (``names``), and each one that has asked about a pod.

    Nothing is kept, released or evicted for the pods of others: they never come for it.
    """

    def __init__(self, names: Iterable[str] = (DEFAULT_SCHEDULER,)) -> None:
        self._names = set(names)

    @property
    def version(self) -> int:
        """Return a number that grows whenever another scheduler asks."""
        return len(self._names)

    def note(self, pod: Pod) -> None:
        """Take note that the scheduler of a pod has asked about it."""
        self._names.add(pod.spec.scheduler_name or DEFAULT_SCHEDULER)

    def ask_about(self, pod: Pod) -> bool:
        """Return whether the scheduler of a pod asks this extender about it."""
        return self.are_ours((pod.spec.scheduler_name or "",))

    def are_ours(self, schedulers: Iterable[str]) -> bool:
        """Return whether all schedulers of these names ask; an empty name is the default one."""
        return all((name or DEFAULT_SCHEDULER) in self._names for name in schedulers)
