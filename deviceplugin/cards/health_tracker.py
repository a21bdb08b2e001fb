"""Tracks the health of each GPU of this node from checks and events."""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final

from deviceplugin import metrics
from deviceplugin.cards.rules import (
    NO_FAULT,
    CardHealth,
    HealthCheckResult,
    HealthReason,
    State,
    after,
    finding_of_xid,
    reset_done,
    wait_seconds,
)
from deviceplugin.cards.state_file import Kept
from deviceplugin.cards.survey import MIG, Survey
from deviceplugin.driver.interface import CardEvent, PhysicalCard, Seen
from deviceplugin.driver.xids import FELL_OFF_THE_BUS
from deviceplugin.errors import Reason
from gpushare.cards.model import FORGET_GONE_SECONDS
from gpushare.clock import Clock

log = logging.getLogger(__name__)

_WATCHED_SECONDS: Final = 3600.0  # a clock may be wrong after a boot, and a GPU may appear late


class HealthTracker:
    """GPUs are named by UUID. ``confirmed`` are those that were healthy at the last check.

    A GPU that is not known here counts as healthy. ``load`` returns a text that differs after each
    boot and each load of the driver.
    """

    def __init__(self, clock: Clock, recover_seconds: float, load: Callable[[], str]) -> None:
        self._clock = clock
        self._recover_seconds = recover_seconds
        self._read_load = load
        self._load = load()
        self._healths: dict[str, CardHealth] = {}
        self._gone: dict[str, int] = {}  # since when, seconds since the epoch
        self._missed: dict[str, float] = {}  # since when this program has known that, monotonic
        self._cordoned: frozenset[str] | None = None  # None until the Node is read
        self._by_people: frozenset[str] = frozenset()
        self._mig: frozenset[str] = frozenset()
        self.confirmed: frozenset[str] = frozenset()

    @property
    def is_suspicious(self) -> bool:
        """Whether a GPU should be checked again soon."""
        return any(health.state is State.SUSPECT for health in self._healths.values())

    @property
    def unhealthy(self) -> dict[str, str]:
        """The reason for each GPU that is unhealthy or recovering."""
        return {u: h.why for u, h in self._healths.items() if not h.is_offered}

    @property
    def mig(self) -> frozenset[str]:
        """The GPUs that are in MIG mode."""
        return self._mig

    @property
    def forgettable(self) -> frozenset[str]:
        """The GPUs that have been gone for long, and that no administrator has cordoned."""
        if self._cordoned is None:
            return frozenset()
        until = self._clock.wall_ns() // 10**9 - FORGET_GONE_SECONDS
        missed = self._clock.monotonic() - _WATCHED_SECONDS
        long = {u for u, since in self._gone.items() if since <= until and self.is_gone(u)}
        return frozenset(u for u in long if self._missed.get(u, missed + 1) <= missed) - (
            self._cordoned
        )

    def gone_since(self, uuid: str) -> int:
        """Return since when the driver has not shown it, in seconds since the epoch; or 0."""
        return self._gone.get(uuid, 0)

    def is_offered(self, uuid: str) -> bool:
        return uuid not in self._mig and self._of(uuid).is_offered

    def is_gone(self, uuid: str) -> bool:
        return self._of(uuid).is_gone

    def shown(self, uuid: str) -> str:
        """Return the name of its state for metrics."""
        if uuid in self._mig:
            return "mig"
        health = self._of(uuid)
        return "gone" if health.is_gone else health.state.value

    def reason(self, uuid: str) -> str:
        """Return the reason why it is not healthy for metrics; empty if it is, or in MIG mode."""
        return "" if uuid in self._mig else self._of(uuid).reason.value

    def trouble(self, uuid: str, *, at_start: bool) -> tuple[Reason, str] | None:
        """Return why the GPU must not be assigned, or with ``at_start`` not be started on."""
        health = self._of(uuid)
        if uuid in self._mig:
            return Reason.CARD_UNHEALTHY, f"it {MIG}"
        if health.is_gone:
            return Reason.CARD_GONE, health.why
        if health.state is State.RECOVERING:
            wait = wait_seconds(health.failures, self._recover_seconds)
            return Reason.CARD_UNHEALTHY, (
                f"it answers again, and is offered once it has been healthy for {wait:g} s; before "
                f"that: {health.why}"
            )
        if health.state is State.UNHEALTHY or (at_start and health.state is State.SUSPECT):
            return Reason.CARD_UNHEALTHY, health.why
        if at_start and uuid not in self.confirmed:
            why = "the driver has not confirmed it since the plugin started or lost the driver"
            return Reason.CARD_UNHEALTHY, why
        return None

    def noticeable(self) -> object:
        """Return a value that differs from before if anything has changed that readers see."""
        states = {
            u: (h.state, h.is_gone, h.why, h.failures, h.needs_reset)
            for u, h in self._healths.items()
        }
        return states, self._mig, self.confirmed, self._by_people

    def update(self, found: Survey, seen: Iterable[Seen], events: Iterable[CardEvent]) -> None:
        """Judge what the driver has shown after ``events`` had come."""
        self._follow_load()
        seen = tuple(seen)
        advice = {c.uuid: c.recovery_action for c in seen if isinstance(c, PhysicalCard)}
        mig = found.mig | {u for u in self._mig if _may_pass(found.findings.get(u, NO_FAULT))}
        for uuid in sorted(mig - self._mig):
            _log_change(uuid, self.shown(uuid), "mig", f"it {MIG}")
        for uuid in sorted(self._mig - mig):
            _log_change(uuid, "mig", State.HEALTHY, "it has left MIG mode")
        self._mig = mig
        for uuid in mig:
            self._healths[uuid] = CardHealth(since=self._clock.monotonic())
        for event in events:
            if event.xid and event.uuid in found.findings.keys() - mig:
                checked = found.findings[event.uuid]
                by_xid = finding_of_xid(event.xid, advice.get(event.uuid))
                if by_xid.why and checked.reason is HealthReason.SILENT:
                    by_xid = replace(by_xid, why=f"XID {event.xid}, and {checked.why}")
                self._judge(event.uuid, by_xid)
        for uuid, finding in found.findings.items():
            if uuid not in mig:
                self._judge(uuid, finding)
        self.confirmed = frozenset(u for u, finding in found.findings.items() if not finding.why)
        self._follow_gone(found, {card.uuid for card in seen})

    def take(self, event: CardEvent, *, alone: bool) -> bool:
        """Judge an event of a known GPU by itself if no check can help; return whether it was.

        ``alone``: a check was tried and does not show the event's effect.
        """
        is_enough = alone or event.xid == FELL_OFF_THE_BUS
        if is_enough and event.xid and event.uuid not in self._mig:
            self._judge(event.uuid, finding_of_xid(event.xid, None))
        return is_enough

    def set_cordoned(
        self, uuids: Collection[str] | None, by_people: Collection[str] | None = None
    ) -> None:
        """Set which GPUs are cordoned, and which of them by people; by default all.

        None where that is not known. A GPU that needs a reset, was cordoned by people and is so no
        longer has been reset, says its administrator.
        """
        self._cordoned = None if uuids is None else frozenset(uuids)
        before, self._by_people = self._by_people, frozenset()
        if self._cordoned is None:
            return
        self._by_people = self._cordoned if by_people is None else frozenset(by_people)
        for uuid in sorted(before - self._cordoned):
            if self._of(uuid).needs_reset:
                self._healths[uuid] = reset_done(self._of(uuid))
                log.info("GPU was uncordoned, so it counts as reset", extra={"card": uuid})

    def forget(self, uuids: Collection[str]) -> None:
        """Drop what is known of these GPUs."""
        for uuid in uuids:
            for known in (self._healths, self._gone, self._missed):
                known.pop(uuid, None)
        self.confirmed -= frozenset(uuids)

    def kept(self, *, exactly: bool) -> dict[str, Kept]:
        """Return what a later program should know of GPUs that are or were unhealthy."""
        now = self._clock.monotonic()
        return {
            uuid: Kept.of(
                health,
                health.owes(now) if exactly else health.owed,
                load=self._load,
                is_mig=uuid in self._mig,
                is_cordoned=uuid in self._by_people,
                gone_since=self.gone_since(uuid),
            )
            for uuid, health in sorted(self._healths.items())
            if health.failures or not self.is_offered(uuid)
        }

    def revive(self, kept: Mapping[str, Kept]) -> None:
        """Continue where an earlier program stopped; what was seen since has precedence."""
        now = self._clock.monotonic()
        self._mig |= {u for u, each in kept.items() if each.is_mig and u not in self._healths}
        revived = {uuid: each.revived(now, self._load) for uuid, each in kept.items()}
        self._healths = revived | self._healths
        self._gone = {
            u: each.gone_since for u, each in kept.items() if each.gone_since
        } | self._gone
        if self._cordoned is None:
            self._by_people = frozenset(u for u, each in kept.items() if each.is_cordoned)

    def _follow_load(self) -> None:
        before, self._load = self._load, self._read_load()
        if before != self._load:
            log.info("the driver was loaded again, so all GPUs count as reset")
            self._healths = {u: reset_done(health) for u, health in self._healths.items()}

    def _follow_gone(self, found: Survey, shown: Collection[str]) -> None:
        now, wall = self._clock.monotonic(), self._clock.wall_ns() // 10**9
        for uuid in self._gone.keys() & set(shown):
            del self._gone[uuid]
            self._missed.pop(uuid, None)
        for uuid, finding in found.findings.items():
            if finding.is_gone:
                self._gone[uuid] = min(wall, self._gone.get(uuid, wall))
                self._missed.setdefault(uuid, now)

    def _of(self, uuid: str) -> CardHealth:
        return self._healths.get(uuid) or CardHealth(since=self._clock.monotonic())

    def _judge(self, uuid: str, finding: HealthCheckResult) -> None:
        now = self._clock.monotonic()
        self._become(uuid, after(self._of(uuid), finding, now, self._recover_seconds))

    def _become(self, uuid: str, health: CardHealth) -> None:
        before = self._of(uuid)
        self._healths[uuid] = health
        xid = HealthReason.XID
        is_cause_new = health.reason is xid and before.reason is not xid
        if (before.state, before.is_gone) == (health.state, health.is_gone) and not is_cause_new:
            return
        _log_change(uuid, before.state, health.state, health.why or before.why)
        if before.state is State.RECOVERING and health.state is State.HEALTHY:
            metrics.RECOVERIES.labels(uuid).inc()


def _may_pass(finding: HealthCheckResult) -> bool:
    """Whether the GPU may still be in MIG mode after this finding."""
    return bool(finding.why) and not finding.is_definite


def _log_change(uuid: str, was: str, now: str, why: str) -> None:
    level = logging.INFO if now == State.HEALTHY else logging.WARNING
    log.log(level, "GPU changed", extra={"card": uuid, "was": was, "now": now, "why": why})
