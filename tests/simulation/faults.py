"""Faults of requests, and how often they happen."""

import random
from dataclasses import dataclass
from typing import Final, Literal

from tests.simulation.apiserver import Request

Fault = Literal[
    "",
    "no connection",
    "request lost",
    "request late",
    "stopped before sending",
    "server slow",
    "failed, not done",
    "failed, done",
    "throttled",
    "conflict",
    "answer lost",
]

OF_ANY: Final[tuple[Fault, ...]] = (
    "no connection", "request lost", "request late", "stopped before sending", "server slow",
    "failed, not done", "failed, done", "throttled", "answer lost",
)  # fmt: skip

OF_BINDINGS: Final[tuple[Fault, ...]] = (
    "conflict", "stopped before sending", "server slow", "request late", "answer lost",
)  # fmt: skip


@dataclass
class Faults:
    """``share`` of all requests have a fault; watches may be behind by one of ``lags`` (seconds).

    Bindings have their own share: they are few, and matter most.
    """

    rng: random.Random
    share: float = 0.0
    share_of_bindings: float = 0.0
    lags: tuple[float, ...] = (0.002, 0.002, 0.01, 0.1, 1.0)

    def of(self, request: Request) -> Fault:
        share = self.share_of_bindings if request.is_binding else self.share
        if self.rng.random() >= share:
            return ""
        return self.rng.choice(OF_ANY + OF_BINDINGS if request.is_binding else OF_ANY)

    def cuts_watch(self) -> bool:
        """Return whether this delivery of a watch's lines is its last."""
        return self.rng.random() < self.share / 8

    def stop(self) -> None:
        """End all faults."""
        self.share = self.share_of_bindings = 0.0
        self.lags = (0.002,)
