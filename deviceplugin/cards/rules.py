"""When a GPU becomes unhealthy and healthy again: one state machine for each GPU (pure).

HEALTHY -> SUSPECT at a failed check, -> UNHEALTHY after three more or at once where the driver is
certain, -> RECOVERING at the first good check, -> HEALTHY after a time of only good ones. That time
doubles with each failure, which a healthy time makes forgotten. Seconds are monotonic.

A driver reports an XID once, and afterwards good checks prove nothing about it. Where its remedy is
a reset and the driver does not say by itself whether one is needed, the GPU ``needs_reset``, and
stays UNHEALTHY until ``reset_done``: after a new boot, after the driver was loaded again, or when
an administrator says so. A condition that lasts until a reset, seen in several checks in a row,
takes the place of that memory: the GPU is healthy only once the condition has ended.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from deviceplugin.driver.interface import PhysicalCard, Query, UnreadableCard
from deviceplugin.driver.xids import FELL_OFF_THE_BUS, HARMLESS_XIDS, RESET_XIDS

QUICK_CHECKS: Final = 3  # failed checks, after the first, that make a suspect GPU unhealthy
MAX_WAIT_SECONDS: Final = 3600.0
FORGET_SECONDS: Final = 3600.0  # of health, for each failure that is forgotten

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
    REPAIR = "repair"  # a repair of its memory waits for a reset
    ECC = "ecc"  # errors of its memory that could not be corrected since the driver was loaded
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
    ``needs_reset``: only a reset is a remedy, and later checks may not show whether it was done.
    ``shows_reset``: the check itself shows that, by the driver's advice or by a condition that
    lasts until a reset. ``unanswered`` are faults that the check would have missed: a query has
    failed.
    """

    why: str = ""
    is_definite: bool = False
    is_gone: bool = False
    reason: HealthReason = HealthReason.NONE
    needs_reset: bool = False
    shows_reset: bool = False
    unanswered: frozenset[HealthReason] = frozenset()


NO_FAULT: Final = HealthCheckResult()
# The faults that a query shows.
_SHOWN_BY: Final = {
    Query.RECOVERY_ACTION: {HealthReason.ADVICE},
    Query.REMAPPED_ROWS: {HealthReason.ROWS, HealthReason.REPAIR},
    Query.PENDING_PAGES: {HealthReason.REPAIR},
    Query.ECC_ERRORS: {HealthReason.ECC},
}


@dataclass(frozen=True, slots=True)
class CardHealth:
    """``why`` is empty while healthy; ``since`` is when the current state began.

    ``failures`` are those not yet forgotten. ``owed`` are the seconds of good checks that were
    missing until the GPU is healthy when its state began. While it ``needs_reset``, ``bad_checks``
    are those in a row that have shown by themselves whether a reset is needed.
    """

    state: State = State.HEALTHY
    why: str = ""
    is_gone: bool = False
    is_definite: bool = False
    reason: HealthReason = HealthReason.NONE
    needs_reset: bool = False
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
    before = _as_shown(before, found)
    if not found.why:
        is_unproven = before.needs_reset or before.reason in found.unanswered
        return before if is_unproven and not before.is_offered else _after_good(before, now)
    if not before.is_offered:
        # The whole time starts again, even if an earlier program has seen a part of it.
        failures = max(1, before.failures)
        unhealthy = replace(before, failures=failures, owed=wait_seconds(failures, recover_seconds))
        if before.state is State.RECOVERING:
            return _because(replace(unhealthy, state=State.UNHEALTHY, since=now), found)
        # The first definite reason stays, except for an XID, which says more than the errors that a
        # check may have found before it, and where that XID needs a reset.
        is_known = before.is_definite and before.is_gone == found.is_gone
        is_lesser = before.reason is HealthReason.XID or found.reason is not HealthReason.XID
        if is_known and is_lesser and not (found.needs_reset and not before.needs_reset):
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


def reset_done(before: CardHealth) -> CardHealth:
    """Return the health after a reset: good checks count again."""
    return replace(before, needs_reset=False, bad_checks=0) if before.needs_reset else before


def _as_shown(before: CardHealth, found: HealthCheckResult) -> CardHealth:
    """Drop the memory of a needed reset once enough checks in a row speak for themselves.

    One check is not enough, because a single answer may be odd.
    """
    if not before.needs_reset or found.needs_reset:
        return before
    shown = before.bad_checks + 1 if found.shows_reset else 0
    return reset_done(before) if shown > QUICK_CHECKS else replace(before, bad_checks=shown)


def wait_seconds(failures: int, recover_seconds: float) -> float:
    """Return how long a GPU must be healthy after so many failures to be offered again."""
    doublings = min(max(0, failures - 1), 32)
    return max(recover_seconds, min(MAX_WAIT_SECONDS, recover_seconds * 2.0**doublings))


def finding_of(card: PhysicalCard | UnreadableCard) -> HealthCheckResult:
    """Judge the GPU's health by one check.

    What the driver advises decides. A driver that gives no advice has it derived from the memory's
    state, which lasts until a reset.
    """
    if isinstance(card, UnreadableCard):
        return HealthCheckResult(
            card.why,
            card.is_definite,
            reason=_reason(card),
            shows_reset=card.is_definite and not card.is_duplicate,
        )
    if card.recovery_action:
        advice = f"the driver advises to {_action(card.recovery_action)}"
        return HealthCheckResult(
            advice, is_definite=True, reason=HealthReason.ADVICE, shows_reset=True
        )
    if card.rows_failed:
        return HealthCheckResult(
            "rows of its memory are broken and could not be remapped: replace the GPU",
            is_definite=True,
            reason=HealthReason.ROWS,
        )
    is_advised = card.recovery_action is not None
    if card.repair_pending and not is_advised:
        return HealthCheckResult(
            "a repair of its memory waits for a reset: reset the GPU or reboot the node",
            reason=HealthReason.REPAIR,
            shows_reset=True,
        )
    if card.uncorrected_errors and not is_advised:
        return HealthCheckResult(
            f"its memory has had {card.uncorrected_errors} errors that could not be corrected "
            f"since the driver was loaded: reset the GPU or reboot the node",
            reason=HealthReason.ECC,
            shows_reset=True,
        )
    return HealthCheckResult(shows_reset=is_advised, unanswered=_unanswered(card))


def _unanswered(card: PhysicalCard) -> frozenset[HealthReason]:
    """Return the faults that a check without them does not rule out."""
    return frozenset[HealthReason]().union(*(_SHOWN_BY.get(query, ()) for query in card.failed))


def finding_of_xid(xid: int, recovery_action: int | None) -> HealthCheckResult:
    """Judge an XID: by the driver's advice, or by a catalog where it gives none."""
    if recovery_action and xid != FELL_OFF_THE_BUS:
        return _by_xid(f"XID {xid}: the driver advises to {_action(recovery_action)}")
    if xid in RESET_XIDS and (recovery_action is None or xid == FELL_OFF_THE_BUS):
        why = (
            f"XID {xid}: {RESET_XIDS[xid]}: it stays unhealthy until the GPU was reset or the node "
            f"rebooted, or until it was cordoned and uncordoned"
        )
        return _by_xid(why, needs_reset=True)
    if recovery_action is None and xid not in HARMLESS_XIDS:
        return _by_xid(f"XID {xid}: see NVIDIA's catalog of XIDs")
    return NO_FAULT


def _by_xid(why: str, *, needs_reset: bool = False) -> HealthCheckResult:
    return HealthCheckResult(
        why, is_definite=True, reason=HealthReason.XID, needs_reset=needs_reset
    )


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
        needs_reset=unhealthy.needs_reset or found.needs_reset,
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
