"""When a GPU becomes unhealthy and healthy again: one state machine for each GPU (pure).

HEALTHY -> SUSPECT at a failed check, -> UNHEALTHY after three more or at once where the driver is
certain, -> RECOVERING at the first good check, -> HEALTHY after a time of only good ones. That time
doubles with each failure, which a healthy time makes forgotten. Seconds are monotonic.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from deviceplugin.driver.interface import PhysicalCard, UnreadableCard

QUICK_CHECKS: Final = 3  # failed checks, after the first, that make a suspect GPU unhealthy
MAX_WAIT_SECONDS: Final = 3600.0
FORGET_SECONDS: Final = 3600.0  # of health, for each failure that is forgotten

FELL_OFF_THE_BUS: Final = 79
# The GPU stays healthy: by NVIDIA's XID catalog these are an application's own fault (13, 31, 43,
# 45, 68, 94) or report what the GPU has repaired itself (63: memory remapped or retired, 92: many
# corrected errors). 109 is a context switch timeout; NVIDIA's own device plugin ignores it, as it
# does 13, 31, 43, 45 and 68 (k8s-device-plugin, internal/rm/health.go).
HARMLESS_XIDS: Final = frozenset({13, 31, 43, 45, 63, 68, 92, 94, 109})
# nvml.h, nvmlDeviceGpuRecoveryAction_t.
ACTIONS: Final = {
    1: "reset the GPU",
    2: "reboot the node",
    3: "drain its peer-to-peer work and reset it",
    4: "drain it and reset it",
    5: "recover its IMEX domain",
    6: "reset its bus",
    7: "reboot the whole system",
}


class State(StrEnum):
    HEALTHY = "healthy"
    SUSPECT = "suspect"
    UNHEALTHY = "unhealthy"
    RECOVERING = "recovering"


class HealthReason(StrEnum):
    """Why a GPU is not healthy, as a label for metrics."""

    NONE = ""
    XID = "xid"  # the driver has reported it by itself
    ADVICE = "advice"  # the driver advises an action
    ROWS = "rows"  # memory rows could not be remapped
    LOST = "lost"  # the driver reports it as lost, or that it must be reset
    GONE = "gone"  # the driver does not show it
    UNREADABLE = "unreadable"  # any other error
    DUPLICATE = "duplicate"  # the driver shows several GPUs with its UUID
    SILENT = "silent"  # no answer, while there are answers about other GPUs
    EARLIER = "earlier"  # it was so before the plugin started


@dataclass(frozen=True, slots=True)
class HealthCheckResult:
    """The result of one check; ``why`` is empty if there is no fault.

    ``is_definite``: checking again will not help. ``is_gone``: the driver does not show the GPU.
    """

    why: str = ""
    is_definite: bool = False
    is_gone: bool = False
    reason: HealthReason = HealthReason.NONE


NO_FAULT: Final = HealthCheckResult()


@dataclass(frozen=True, slots=True)
class CardHealth:
    """``why`` is empty while healthy; ``since`` is when the current state began.

    ``failures`` are those not yet forgotten. ``owed`` are the seconds of good checks that were
    missing until the GPU is healthy when its state began.
    """

    state: State = State.HEALTHY
    why: str = ""
    is_gone: bool = False
    is_definite: bool = False
    reason: HealthReason = HealthReason.NONE
    bad_checks: int = 0
    failures: int = 0
    since: float = 0.0
    owed: float = 0.0

    @property
    def is_offered(self) -> bool:
        """Whether the GPU's devices are reported to the kubelet as healthy."""
        return self.state in {State.HEALTHY, State.SUSPECT}

    def owes(self, now: float) -> float:
        """Return the seconds of good checks until the GPU is healthy."""
        done = now - self.since if self.state is State.RECOVERING else 0.0
        return max(0.0, self.owed - done)


def after(
    before: CardHealth, found: HealthCheckResult, now: float, recover_seconds: float
) -> CardHealth:
    """Return the GPU's health after a check, or another finding, at ``now``."""
    if not found.why:
        return _after_good(before, now)
    if not before.is_offered:
        # The whole time starts again, even if an earlier program has seen a part of it.
        failures = max(1, before.failures)
        unhealthy = replace(before, failures=failures, owed=wait_seconds(failures, recover_seconds))
        if before.state is State.RECOVERING:
            return _because(replace(unhealthy, state=State.UNHEALTHY, since=now), found)
        # The first definite reason stays, except for an XID, which says more than the errors that a
        # check may have found before it.
        is_known = before.is_definite and before.is_gone == found.is_gone
        if is_known and (before.reason is HealthReason.XID or found.reason is not HealthReason.XID):
            return unhealthy
        return _because(unhealthy, found)
    bad_checks = before.bad_checks + 1
    if not found.is_definite and bad_checks <= QUICK_CHECKS:
        # ``since`` stays: the GPU may turn out healthy.
        suspect = replace(before, state=State.SUSPECT, bad_checks=bad_checks)
        return replace(suspect, why=found.why, reason=found.reason)
    forgotten = int((now - before.since) / FORGET_SECONDS)
    failures = max(0, before.failures - forgotten) + 1
    unhealthy = CardHealth(
        state=State.UNHEALTHY,
        failures=failures,
        since=now,
        owed=wait_seconds(failures, recover_seconds),
    )
    return _because(unhealthy, found)


def wait_seconds(failures: int, recover_seconds: float) -> float:
    """Return how long a GPU must be healthy after so many failures to be offered again."""
    doublings = min(max(0, failures - 1), 32)
    return max(recover_seconds, min(MAX_WAIT_SECONDS, recover_seconds * 2.0**doublings))


def finding_of(card: PhysicalCard | UnreadableCard) -> HealthCheckResult:
    """Judge the GPU's health by one check."""
    if isinstance(card, UnreadableCard):
        return HealthCheckResult(card.why, card.is_definite, reason=_reason(card))
    if card.recovery_action:
        advice = f"the driver advises to {_action(card.recovery_action)}"
        return HealthCheckResult(advice, is_definite=True, reason=HealthReason.ADVICE)
    if card.rows_failed:
        return HealthCheckResult(
            "rows of its memory are broken and could not be remapped: replace the GPU",
            is_definite=True,
            reason=HealthReason.ROWS,
        )
    return NO_FAULT


def finding_of_xid(xid: int, recovery_action: int | None) -> HealthCheckResult:
    """Judge an XID: by the driver's advice, or by a catalog where it gives none."""
    if xid == FELL_OFF_THE_BUS:
        return _by_xid(f"XID {xid}: the GPU has fallen off the bus")
    if recovery_action:
        return _by_xid(f"XID {xid}: the driver advises to {_action(recovery_action)}")
    if recovery_action is None and xid not in HARMLESS_XIDS:
        return _by_xid(f"XID {xid}: see NVIDIA's catalog of XIDs")
    return NO_FAULT


def _by_xid(why: str) -> HealthCheckResult:
    return HealthCheckResult(why, is_definite=True, reason=HealthReason.XID)


def _reason(card: UnreadableCard) -> HealthReason:
    if card.is_silent:
        return HealthReason.SILENT
    if card.is_duplicate:
        return HealthReason.DUPLICATE
    return HealthReason.LOST if card.is_definite else HealthReason.UNREADABLE


def _action(number: int) -> str:
    return ACTIONS.get(number, f"take recovery action {number}")


def _because(unhealthy: CardHealth, found: HealthCheckResult) -> CardHealth:
    return replace(
        unhealthy,
        why=found.why,
        is_gone=found.is_gone,
        is_definite=found.is_definite,
        reason=found.reason,
    )


def _after_good(before: CardHealth, now: float) -> CardHealth:
    if before.state is State.HEALTHY:
        return before
    if before.state is State.SUSPECT:
        healthy = replace(before, state=State.HEALTHY, bad_checks=0)
        return replace(healthy, why="", reason=HealthReason.NONE)
    recovering = before
    if before.state is State.UNHEALTHY:
        recovering = replace(before, state=State.RECOVERING, is_gone=False, since=now)
    if recovering.owes(now) > 0:
        return recovering
    return CardHealth(failures=recovering.failures, since=now)
