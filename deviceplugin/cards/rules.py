"""When a card is ill and when it is well again: one state machine for each card (pure).

HEALTHY -> SUSPECT at a failed probe, -> UNHEALTHY after three more or at once where the driver is
sure, -> RECOVERING at the first good probe, -> HEALTHY after a time of nothing but good ones. That
time doubles with each illness and is forgotten again with health. Seconds are monotonic.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from deviceplugin.driver.interface import PhysicalCard, UnreadableCard

QUICK_PROBES: Final = 3  # failed ones, after the first, that make a suspect unhealthy
MAX_WAIT_SECONDS: Final = 3600.0
FORGET_SECONDS: Final = 3600.0  # of health, for each illness that is forgotten

FELL_OFF_THE_BUS: Final = 79
# The card goes on: by NVIDIA's XID catalogue these are an application's own fault (13, 31, 43, 45,
# 68, 94) or a record of what the card has repaired itself (63: memory remapped or retired, 92: many
# corrected errors). 109 is a context that was switched too late; NVIDIA's own device plugin goes on
# after it, as after 13, 31, 43, 45 and 68 (k8s-device-plugin, internal/rm/health.go).
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
    """Why a card is not well, in a word for metrics."""

    NONE = ""
    XID = "xid"  # the driver has told of it by itself
    ADVICE = "advice"  # the driver advises to do something with the card
    ROWS = "rows"  # of memory, which could not be remapped
    LOST = "lost"  # the driver says so, or that it must be reset
    GONE = "gone"  # the driver does not show it
    UNREADABLE = "unreadable"  # any other error
    DUPLICATE = "duplicate"  # the driver shows several cards with its UUID
    SILENT = "silent"  # no answer, while there are some about other cards
    EARLIER = "earlier"  # it was so before the plugin started


@dataclass(frozen=True, slots=True)
class Finding:
    """What one probe found; empty ``why`` if all is well.

    ``is_definite``: asking again will not help. ``is_gone``: the driver does not show the card.
    """

    why: str = ""
    is_definite: bool = False
    is_gone: bool = False
    reason: HealthReason = HealthReason.NONE


WELL: Final = Finding()


@dataclass(frozen=True, slots=True)
class CardHealth:
    """``why`` is empty while healthy; ``since`` when the present state began.

    ``illnesses`` are those not yet forgotten. ``owed`` are the seconds of good probes that a card
    which is ill or recovering still owed when its state began.
    """

    state: State = State.HEALTHY
    why: str = ""
    is_gone: bool = False
    is_definite: bool = False
    reason: HealthReason = HealthReason.NONE
    bad_probes: int = 0
    illnesses: int = 0
    since: float = 0.0
    owed: float = 0.0

    @property
    def is_offered(self) -> bool:
        """Whether the kubelet is told that the card's devices are healthy."""
        return self.state in {State.HEALTHY, State.SUSPECT}

    def owes(self, now: float) -> float:
        """Seconds of good probes until the card is healthy."""
        done = now - self.since if self.state is State.RECOVERING else 0.0
        return max(0.0, self.owed - done)


def after(before: CardHealth, found: Finding, now: float, recover_seconds: float) -> CardHealth:
    """The card's health after a probe, or another finding, at ``now``."""
    if not found.why:
        return _after_good(before, now)
    if not before.is_offered:
        # It owes the whole time again, also where a program before this one had seen some of it.
        illnesses = max(1, before.illnesses)
        ill = replace(before, illnesses=illnesses, owed=wait_seconds(illnesses, recover_seconds))
        if before.state is State.RECOVERING:
            return _because(replace(ill, state=State.UNHEALTHY, since=now), found)
        # The first definite reason stays, but for an XID, which says more than the errors that a
        # look may have found before it came.
        is_known = before.is_definite and before.is_gone == found.is_gone
        if is_known and (before.reason is HealthReason.XID or found.reason is not HealthReason.XID):
            return ill
        return _because(ill, found)
    bad_probes = before.bad_probes + 1
    if not found.is_definite and bad_probes <= QUICK_PROBES:
        # Since when it is well stays: it may be nothing.
        suspect = replace(before, state=State.SUSPECT, bad_probes=bad_probes)
        return replace(suspect, why=found.why, reason=found.reason)
    forgotten = int((now - before.since) / FORGET_SECONDS)
    illnesses = max(0, before.illnesses - forgotten) + 1
    ill = CardHealth(
        state=State.UNHEALTHY,
        illnesses=illnesses,
        since=now,
        owed=wait_seconds(illnesses, recover_seconds),
    )
    return _because(ill, found)


def wait_seconds(illnesses: int, recover_seconds: float) -> float:
    """How long a card must be well after so many illnesses before it is offered again."""
    doublings = min(max(0, illnesses - 1), 32)
    return max(recover_seconds, min(MAX_WAIT_SECONDS, recover_seconds * 2.0**doublings))


def finding_of(card: PhysicalCard | UnreadableCard) -> Finding:
    """What a look at the card says about its health."""
    if isinstance(card, UnreadableCard):
        return Finding(card.why, card.is_definite, reason=_reason(card))
    if card.recovery_action:
        advice = f"the driver advises to {_action(card.recovery_action)}"
        return Finding(advice, is_definite=True, reason=HealthReason.ADVICE)
    if card.rows_failed:
        return Finding(
            "rows of its memory are broken and could not be remapped: have it replaced",
            is_definite=True,
            reason=HealthReason.ROWS,
        )
    return WELL


def finding_of_xid(xid: int, recovery_action: int | None) -> Finding:
    """What an XID says: the driver's advice decides, a catalogue where it gives none."""
    if xid == FELL_OFF_THE_BUS:
        return _by_xid(f"XID {xid}: the GPU has fallen off the bus")
    if recovery_action:
        return _by_xid(f"XID {xid}: the driver advises to {_action(recovery_action)}")
    if recovery_action is None and xid not in HARMLESS_XIDS:
        return _by_xid(f"XID {xid}: see NVIDIA's catalogue of XIDs")
    return WELL


def _by_xid(why: str) -> Finding:
    return Finding(why, is_definite=True, reason=HealthReason.XID)


def _reason(card: UnreadableCard) -> HealthReason:
    if card.is_silent:
        return HealthReason.SILENT
    if card.is_duplicate:
        return HealthReason.DUPLICATE
    return HealthReason.LOST if card.is_definite else HealthReason.UNREADABLE


def _action(number: int) -> str:
    return ACTIONS.get(number, f"take recovery action {number}")


def _because(ill: CardHealth, found: Finding) -> CardHealth:
    return replace(
        ill,
        why=found.why,
        is_gone=found.is_gone,
        is_definite=found.is_definite,
        reason=found.reason,
    )


def _after_good(before: CardHealth, now: float) -> CardHealth:
    if before.state is State.HEALTHY:
        return before
    if before.state is State.SUSPECT:
        well = replace(before, state=State.HEALTHY, bad_probes=0)
        return replace(well, why="", reason=HealthReason.NONE)
    recovering = before
    if before.state is State.UNHEALTHY:
        recovering = replace(before, state=State.RECOVERING, is_gone=False, since=now)
    if recovering.owes(now) > 0:
        return recovering
    return CardHealth(illnesses=recovering.illnesses, since=now)
