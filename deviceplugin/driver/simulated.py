"""GPUs that exist only as numbers, to try gpushare and to test manifests without a GPU."""

import threading
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from deviceplugin.driver.interface import (
    CardEvent,
    MemoryLimit,
    PhysicalCard,
    ProcessMemory,
    UtilizationSample,
)
from gpushare.contract import MODEL_SIMULATED

_NAMES: Final = uuid.UUID("6f1c1c9e-5b0d-4b57-9d0a-7f3f0f6b2c11")


class SimulatedGpus:
    """Healthy GPUs without processes: a ``driver.Backend`` and a ``driver.ProcessSource``.

    ``memory_mib`` has one number for each GPU. Their UUIDs stay the same for a node's name.
    """

    def __init__(self, node_name: str, memory_mib: Sequence[int]) -> None:
        self._cards = tuple(
            PhysicalCard(
                uuid=f"GPU-{uuid.uuid5(_NAMES, f'{node_name}/{position}')}",
                minor=position,
                model=MODEL_SIMULATED,
                memory_mib=mib,
                reserved_mib=0,
                why_no_limit="the GPU is simulated",
            )
            for position, mib in enumerate(memory_mib)
        )
        self._never = threading.Event()
        self.answered = 0

    @property
    def heard(self) -> frozenset[str]:
        return frozenset(card.uuid for card in self._cards)

    def count(self) -> int:
        self.answered += 1
        return len(self._cards)

    def card(self, position: int) -> PhysicalCard:
        self.answered += 1
        return self._cards[position]

    def next_event(self, seconds: float) -> CardEvent | None:
        self._never.wait(seconds)
        return None

    def uuid(self, position: int) -> str:
        return self._cards[position].uuid

    def processes(self, position: int) -> tuple[ProcessMemory, ...]:  # noqa: ARG002
        return ()

    def samples(self, position: int) -> tuple[UtilizationSample, ...]:  # noqa: ARG002
        return ()

    def limit(self, position: int, cgroup: Path) -> MemoryLimit:  # noqa: ARG002
        return MemoryLimit(why_unknown="a simulated GPU limits no memory")
