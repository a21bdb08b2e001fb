"""Elect a leader with a coordination.k8s.io/v1 Lease, which at most one process holds.

Clocks of different machines are never compared. A holder counts from before it sent its renewal, a
candidate from after it saw the last one, so the candidate's time always ends later.
"""

import asyncio
import datetime as dt
import logging
import math
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from gpushare.clock import Clock
from gpushare.contract import ANNOTATION_ADDRESS
from gpushare.errors import ApiError, Conflict, NotFound, SettingsError
from gpushare.kube.client import Kube
from gpushare.kube.paths import lease_path
from gpushare.kube.responses import decode

log = logging.getLogger(__name__)

DRIFT: Final = 0.02  # how much faster a candidate's clock may run than the holder's
NEVER: Final = -math.inf

Step = Literal["wait", "take", "renew"]
_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode


@dataclass(frozen=True, slots=True)
class Timing:
    """Durations in seconds.

    After ``renew`` without a renewal, the leader starts nothing new. A candidate waits for
    ``lease`` after the last renewal. ``retry`` is the time between two attempts.
    """

    lease: float = 6.0
    renew: float = 4.0
    retry: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.retry < self.renew < self.lease * (1 - DRIFT):
            raise SettingsError(
                f"lease of {self.lease:g} s, renewed within {self.renew:g} s, tried every "
                f"{self.retry:g} s: each must be shorter than the one before"
            )

    @property
    def written(self) -> int:
        """Return the whole seconds in the Lease, never fewer than ``lease``."""
        return math.ceil(self.lease)

    @property
    def attempt(self) -> float:
        """Return the time limit of an attempt, which leaves time for a second one."""
        return self.renew / 2


@dataclass(frozen=True, slots=True)
class Record:
    """A Lease as read. ``version`` is different for every state of it.

    ``term`` stays the same while one holder renews, and changes whenever the Lease is taken.
    ``is_released``: its holder released it after the end of all its writes. A Lease without a
    holder that is not released was cleared by someone else, and its holder may still lead.
    """

    holder: str
    version: str
    seconds: float
    address: str = ""
    term: str = ""
    is_released: bool = False


class Election:
    """The state of one candidate, which decides its next step (pure: times are arguments).

    All times are of one clock that advances while the process or its machine is suspended.
    """

    def __init__(self, identity: str, timing: Timing) -> None:
        self._identity, self._timing = identity, timing
        self._seen: Record | None = None
        self._seen_at = NEVER
        self._renewed_at = NEVER
        self._has_looked = False
        self._sent_term: str | None = None

    def observed(self, record: Record | None, now: float) -> None:
        """Record the result of a read that ended at ``now``; None if there is no Lease."""
        before = self._seen
        is_same = self._has_looked and (record and record.version) == (before and before.version)
        self._seen, self._has_looked = record, True
        if not is_same:
            self._seen_at = now
        if not self._is_ours:
            self._renewed_at = NEVER

    def step(self, now: float) -> Step:
        """Return what to do at ``now``, right after a read.

        A Lease that is missing, has no holder, or names this process in a term that it did not
        begin, was deleted or changed by someone else while it may be held: it counts as held.
        """
        if self._is_ours:
            return "renew"
        return "take" if now >= self.free_at else "wait"

    @property
    def _is_ours(self) -> bool:
        seen = self._seen
        return seen is not None and seen.holder == self._identity and seen.term == self._sent_term

    @property
    def free_at(self) -> float:
        """Return when the Lease may be taken if it does not change."""
        seen = self._seen
        if seen is not None and seen.is_released:
            return self._seen_at
        seconds = float(self._timing.written)
        if seen is not None:
            is_another = seen.holder not in {"", self._identity}
            seconds = seen.seconds if is_another else max(seen.seconds, seconds)
        return self._seen_at + seconds

    def sending(self, term: str) -> None:
        """Record the term of a write before it is sent.

        If the response is lost, the term tells this write from others in the same name.
        """
        self._sent_term = term

    def wrote(self, record: Record, sent_at: float, now: float) -> None:
        """Record a successful write of this process, begun at ``sent_at`` and ended at ``now``."""
        self._seen, self._seen_at, self._has_looked = record, now, True
        self._sent_term = record.term
        self._renewed_at = sent_at

    def step_down(self) -> None:
        self._renewed_at = NEVER

    def leads(self, now: float) -> bool:
        """Return whether this process may decide at ``now``. Call it at use: timers may be late."""
        return now < self.leads_until

    @property
    def leads_until(self) -> float:
        return self._renewed_at + self._timing.renew

    @property
    def ends_at(self) -> float:
        """Return when every write must have ended, because another process may lead then."""
        return self._renewed_at + self._timing.lease * (1 - DRIFT)

    @property
    def term(self) -> str:
        """Return the current term; anything prepared in another term is invalid."""
        return self._seen.term if self._seen is not None else ""

    def leader(self, now: float) -> Record | None:
        """Return the Lease of another process that leads at ``now``; None if none is known."""
        seen = self._seen
        if seen is None or seen.holder in {"", self._identity} or now >= self.free_at:
            return None
        return seen


class Elector:
    """Takes and renews the Lease; ``address`` is where other replicas reach this process."""

    def __init__(
        self, api: "KubeLease", identity: str, address: str, timing: Timing, clock: Clock
    ) -> None:
        self._api, self._identity, self._address = api, identity, address
        self._timing, self._clock = timing, clock
        self._election = Election(identity, timing)
        self._lease: dict[str, Any] | None = None

    @property
    def leads(self) -> bool:
        return self._election.leads(self._clock.monotonic())

    @property
    def term(self) -> str:
        return self._election.term

    @property
    def ends_at(self) -> float:
        return self._election.ends_at

    @property
    def leader(self) -> Record | None:
        return self._election.leader(self._clock.monotonic())

    async def run(
        self, lead: Callable[[], Awaitable[None]], before_release: Callable[[], Awaitable[None]]
    ) -> None:
        """Run ``lead`` whenever this process leads, and cancel it when it no longer does.

        If another process may have led in between, ``lead`` is cancelled and started again. Runs
        until cancelled; then awaits ``before_release``, after which no write of this process may
        take effect, and releases the Lease.
        """
        try:
            while True:
                await self._attempt(self._timing.attempt)
                if self.leads:
                    log.info("this replica leads", extra={"identity": self._identity})
                    await self._lead(lead)
                    log.warning("this replica leads no more", extra={"identity": self._identity})
                await asyncio.sleep(self._pause())
        finally:
            if self.leads:
                self._election.step_down()
                await before_release()
                await self._release()

    async def _lead(self, lead: Callable[[], Awaitable[None]]) -> None:
        term = self.term
        work = asyncio.ensure_future(lead())
        try:
            while not work.done() and self.term == term and (left := self._left) > 0:
                await asyncio.wait({work}, timeout=min(self._pause(), left))
                await self._attempt(max(0.05, min(self._timing.attempt, self._left)))
        finally:
            work.cancel()
            await asyncio.wait({work})
        if not work.cancelled():
            work.result()  # an error of ``lead`` ends the program

    @property
    def _left(self) -> float:
        return self._election.leads_until - self._clock.monotonic()

    def _pause(self) -> float:
        """Return the seconds until the next attempt.

        A candidate tries again at the latest when the Lease ends. If it has ended already and could
        not be taken or read, the delay is the usual one, to spare an API server in trouble.
        """
        seconds = self._timing.retry * random.uniform(1.0, 1.2)  # noqa: S311 - no secret
        left = self._election.free_at - self._clock.monotonic()
        return min(seconds, max(self._timing.retry / 10, left)) if left > 0 else seconds

    async def _attempt(self, seconds: float) -> None:
        """Read, take or renew the Lease once; after a failure, the earlier state stays valid."""
        try:
            async with asyncio.timeout(seconds):
                await self._try(seconds)
        except Conflict:
            self._lease = None  # another process wrote first: read again
        except (ApiError, TimeoutError, OSError, ValueError) as err:
            self._lease = None
            log.warning("lease not read or renewed", extra={"why": repr(err)})

    async def _try(self, seconds: float) -> None:
        if self._lease is None or not self.leads:
            self._lease = await self._api.read(seconds=seconds)
            self._election.observed(record_of(self._lease), self._clock.monotonic())
        step = self._election.step(self._clock.monotonic())
        if step == "wait":
            return
        wanted = changed(
            self._lease,
            holder=self._identity,
            address=self._address,
            seconds=self._timing.written,
            now=_micro_time(self._clock.wall_ns()),
            takes=step == "take",
        )
        self._election.sending(_term(wanted["spec"]))
        sent_at = self._clock.monotonic()
        if self._lease is None:
            written = await self._api.create(wanted, seconds=seconds)
        else:
            written = await self._api.write(wanted, seconds=seconds)
        record = record_of(written)
        if record is None or record.holder != self._identity:
            raise ApiError(f"the Lease was written and its holder is {record}")
        self._election.wrote(record, sent_at, self._clock.monotonic())
        self._lease = written

    async def _release(self) -> None:
        seconds = self._timing.attempt
        try:
            async with asyncio.timeout(seconds):
                lease = await self._api.read(seconds=seconds)
                record = record_of(lease)
                if record is not None and record.holder == self._identity:
                    now = _micro_time(self._clock.wall_ns())
                    free = changed(lease, holder="", address="", seconds=1, now=now, takes=False)
                    await self._api.write(free, seconds=seconds)
        except (ApiError, TimeoutError, OSError) as err:
            log.warning("lease not released, it expires", extra={"why": repr(err)})


class KubeLease:
    """One Lease. All methods raise ApiError, ``write`` and ``create`` also Conflict."""

    def __init__(self, kube: Kube, namespace: str, name: str) -> None:
        self._kube, self._namespace, self._name = kube, namespace, name

    async def read(self, *, seconds: float) -> dict[str, Any] | None:
        try:
            return await self._request("GET", self._name, None, seconds)
        except NotFound:
            return None

    async def create(self, lease: dict[str, Any], *, seconds: float) -> dict[str, Any]:
        meta = {**lease.get("metadata", {}), "name": self._name, "namespace": self._namespace}
        return await self._request("POST", "", {**lease, "metadata": meta}, seconds)

    async def write(self, lease: dict[str, Any], *, seconds: float) -> dict[str, Any]:
        return await self._request("PUT", self._name, lease, seconds)

    async def _request(
        self, method: str, name: str, body: dict[str, Any] | None, seconds: float
    ) -> dict[str, Any]:
        path = lease_path(self._namespace, name)
        return decode(_decode, await self._kube.request(method, path, body=body, seconds=seconds))


def record_of(lease: dict[str, Any] | None) -> Record | None:
    """Decode a Lease; raise ApiError if it is not one. The default duration is a second."""
    if lease is None:
        return None
    try:
        meta, spec = lease["metadata"], lease.get("spec") or {}
        annotations = meta.get("annotations") or {}
        return Record(
            holder=str(spec.get("holderIdentity") or ""),
            version=str(meta["resourceVersion"]),
            seconds=float(spec.get("leaseDurationSeconds") or 1),
            address=str(annotations.get(ANNOTATION_ADDRESS) or ""),
            term=_term(spec),
            # Only a release empties both; clearing the holder by hand leaves the address.
            is_released=annotations.get(ANNOTATION_ADDRESS) == ""
            and not spec.get("holderIdentity"),
        )
    except (KeyError, TypeError, AttributeError, ValueError) as err:
        raise ApiError(f"the API server's answer is not a Lease: {err!r}") from err


def changed(
    lease: dict[str, Any] | None, *, holder: str, address: str, seconds: int, now: str, takes: bool
) -> dict[str, Any]:
    """Return the Lease to write, which keeps all fields of others.

    ``takes`` begins a new term, whoever the holder was.
    """
    before = lease or {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
    meta = dict(before.get("metadata") or {})
    meta["annotations"] = {**(meta.get("annotations") or {}), ANNOTATION_ADDRESS: address}
    spec = dict(before.get("spec") or {})
    if takes:
        spec["acquireTime"] = now
        spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + 1
    spec |= {"holderIdentity": holder, "leaseDurationSeconds": seconds, "renewTime": now}
    return {**before, "metadata": meta, "spec": spec}


def _term(spec: Mapping[str, Any]) -> str:
    return f"{spec.get('leaseTransitions')} {spec.get('acquireTime')}"


def _micro_time(wall_ns: int) -> str:
    """Return a time as a MicroTime: UTC with six digits of microseconds."""
    when = dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(microseconds=wall_ns // 1000)
    return f"{when:%Y-%m-%dT%H:%M:%S.%fZ}"
