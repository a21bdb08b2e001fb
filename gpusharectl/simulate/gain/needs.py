"""What pods with whole GPUs would request of each of them if they requested memory (pure)."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gpushare.objects.model import Pod
from gpushare.text.amounts import MIB_PER_GIB

NOTEBOOK_MIB: Final = 8 * MIB_PER_GIB
_EXAMPLE_MIB: Final = 16 * MIB_PER_GIB


class By(StrEnum):
    """Where the amounts are from."""

    EXAMPLE = "example"
    OPTION = "option"
    USAGE = "usage"


@dataclass(frozen=True, slots=True)
class Needs:
    """``mib`` of each GPU, or what each pod ``used`` at most, by namespace and name.

    Only pods of ``namespace`` count; all if it is empty. ``notebook_mib`` is the size of the pods
    that fit in addition.
    """

    mib: int | None = None
    used: Mapping[str, int] | None = None
    namespace: str = ""
    notebook_mib: int = NOTEBOOK_MIB

    @property
    def by(self) -> By:
        if self.used is not None:
            return By.USAGE
        return By.EXAMPLE if self.mib is None else By.OPTION

    def otherwise(self, largest_mib: int) -> int | None:
        """Return what pods without a measurement need; None if nobody says it.

        Without any statement it is an example: less than the largest GPU has, if that is enough
        for several notebooks.
        """
        if self.by is not By.EXAMPLE:
            return self.mib
        return _EXAMPLE_MIB if largest_mib > _EXAMPLE_MIB else self.notebook_mib

    def counts(self, pod: Pod) -> bool:
        return self.namespace in {"", pod.metadata.namespace}
