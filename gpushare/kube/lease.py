"""One coordination.k8s.io/v1 Lease, held by one process at most: who leads, and until when.

Clocks of different machines are never compared. A holder counts from before it sent its renewal; a
candidate counts from after it saw the last one, so it always ends later than the holder.
"""

import asyncio
import datetime as dt
import logging
import math
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

import msgspec

from gpushare.clock import Clock
from gpushare.contract import ANNOTATION_ADDRESS
from gpushare.errors import UNDECODABLE, ApiError, Conflict, NotFound, SettingsError
from gpushare.kube.client import Kube
from gpushare.kube.paths import lease_path

log = logging.getLogger(__name__)

DRIFT: Final = 0.02  # how much faster a candidate's clock may run than the holder's
NEVER: Final = -math.inf

Step = Literal["wait", "take", "renew"]


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds. Once ``renew`` have passed without a renewal nothing new is begun; a candidate waits
    for ``lease`` after the last one; ``retry`` is between two attempts, each of which has a limit.
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
        """What the Lease says: whole seconds, never fewer than are counted on."""
        return math.ceil(self.lease)

    @property
    def attempt(self) -> float:
        """A hanging API server must leave time for a second attempt."""
        return self.renew / 2


@dataclass(frozen=True, slots=True)
class Record:
    """A Lease as read. ``version`` differs from that of any other state of it.

    ``term`` stays as long as one holder renews, and changes whenever the Lease is taken.
    ``is_released``: its holder let go of it, and had ended all that it began. A Lease without a
    holder that is not released was cleared by somebody else, while its holder may go on.
    """

    holder: str
    version: str
    seconds: float
    address: str = ""
    term: str = ""
    is_released: bool = False


class Election:
    """What one candidate knows, and what it does next (pure: every moment is an argument).

    Moments are of one clock that goes on while the process or its machine sleeps.
    """

    def __init__(self, identity: str, timing: Timing) -> None:
        self._identity, self._timing = identity, timing
        self._seen: Record | None = None
        self._seen_at = NEVER
        self._renewed_at = NEVER
        self._has_looked = False
        self._sent_term: str | None = None

    def observed(self, record: Record | None, now: float) -> None:
        """Take note of what a read that has ended at ``now`` showed; None: there is no Lease."""
        before = self._seen
        is_same = self._has_looked and (record and record.version) == (before and before.version)
        self._seen, self._has_looked = record, True
        if not is_same:
            self._seen_at = now
        if not self._is_ours:
            self._renewed_at = NEVER

    def step(self, now: float) -> Step:
        """What to do at ``now``, right after a read.

        A Lease that is missing, has no holder, or names us in a term that we did not begin, was
        deleted or changed by somebody else, perhaps under its holder: it counts as held.
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
        """When a Lease that stays as it was seen may be taken."""
        seen = self._seen
        if seen is not None and seen.is_released:
            return self._seen_at
        seconds = float(self._timing.written)
        if seen is not None:
            is_another = seen.holder not in {"", self._identity}
            seconds = seen.seconds if is_another else max(seen.seconds, seconds)
        return self._seen_at + seconds

    def sending(self, term: str) -> None:
        """Take note of the term of a write of ours, before it is sent.

        Its answer may be lost: by its term it is known from what others write in our name.
        """
        self._sent_term = term

    def wrote(self, record: Record, sent_at: float, now: float) -> None:
        """Take note of our own write, begun at ``sent_at`` and answered as done at ``now``."""
        self._seen, self._seen_at, self._has_looked = record, now, True
        self._sent_term = record.term
        self._renewed_at = sent_at

    def step_down(self) -> None:
        """Lead no more, whatever was written, until the next write."""
        self._renewed_at = NEVER

    def leads(self, now: float) -> bool:
        """Whether anything may be decided at ``now``. Ask at use: a timer may come too late."""
        return now < self.leads_until

    @property
    def leads_until(self) -> float:
        return self._renewed_at + self._timing.renew

    @property
    def ends_at(self) -> float:
        """Before this, every write must have ended: from here on another may lead."""
        return self._renewed_at + self._timing.lease * (1 - DRIFT)

    @property
    def term(self) -> str:
        """Which time of holding it this is; what was prepared for another one is worth nothing."""
        return self._seen.term if self._seen is not None else ""

    def leader(self, now: float) -> Record | None:
        """Who leads as far as is known: another holder whose time is not over."""
        seen = self._seen
        if seen is None or seen.holder in {"", self._identity} or now >= self.free_at:
            return None
        return seen


class LeaseApi(Protocol):
    """The Lease on the API server. All raise ApiError; ``write`` and ``create`` Conflict."""

    async def read(self, *, seconds: float) -> dict[str, Any] | None: ...
    async def create(self, lease: dict[str, Any], *, seconds: float) -> dict[str, Any]: ...
    async def write(self, lease: dict[str, Any], *, seconds: float) -> dict[str, Any]: ...


class Elector:
    """Runs for the Lease for ever; ``address`` is where others reach this process."""

    def __init__(
        self, api: LeaseApi, identity: str, address: str, timing: Timing, clock: Clock
    ) -> None:
        self._api, self._identity, self._address = api, identity, address
        self._timing, self._clock = timing, clock
        self._election = Election(identity, timing)
        self._lease: dict[str, Any] | None = None

    @property
    def leads(self) -> bool:
        """Whether this process leads at this very moment."""
        return self._election.leads(self._clock.monotonic())

    @property
    def term(self) -> str:
        """Which time of leading this is, while ``leads``."""
        return self._election.term

    @property
    def ends_at(self) -> float:
        """When every write must have ended, by the clock that was given."""
        return self._election.ends_at

    @property
    def leader(self) -> Record | None:
        """The other process that leads, as far as is known."""
        return self._election.leader(self._clock.monotonic())

    async def run(
        self, lead: Callable[[], Awaitable[None]], before_release: Callable[[], Awaitable[None]]
    ) -> None:
        """Run ``lead`` whenever this process leads, cancelling it when it does not any more.

        Where another may have led in between, it is cancelled and run anew.

        Until cancelled; then ``before_release`` is awaited, after which nothing of this process
        may land any more, and the Lease is let go of.
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
            work.result()  # what breaks while leading ends the program

    @property
    def _left(self) -> float:
        return self._election.leads_until - self._clock.monotonic()

    def _pause(self) -> float:
        """A candidate need not wait longer than the Lease lasts.

        One that has ended already, and could not be taken or not even be read, is no reason to ask
        an API server in trouble more often.
        """
        seconds = self._timing.retry * random.uniform(1.0, 1.2)  # noqa: S311 - no secret
        left = self._election.free_at - self._clock.monotonic()
        return min(seconds, max(self._timing.retry / 10, left)) if left > 0 else seconds

    async def _attempt(self, seconds: float) -> None:
        """Look once, and take or renew; whatever fails, what was known before still holds."""
        try:
            async with asyncio.timeout(seconds):
                await self._try(seconds)
        except Conflict:
            self._lease = None  # somebody wrote first: read again
        except (ApiError, TimeoutError, OSError, ValueError) as err:
            self._lease = None
            log.warning("lease not seen or renewed", extra={"why": repr(err)})

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
            raise ApiError(f"the Lease was written and names {record} as its holder")
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
            log.warning("lease not let go of, it ends by itself", extra={"why": repr(err)})


class KubeLease:
    """One Lease of a namespace, by its name."""

    def __init__(self, kube: Kube, namespace: str, name: str) -> None:
        self._kube, self._namespace, self._name = kube, namespace, name

    async def read(self, *, seconds: float) -> dict[str, Any] | None:
        path = lease_path(self._namespace, self._name)
        try:
            return _decoded(await self._kube.request("GET", path, seconds=seconds))
        except NotFound:
            return None

    async def create(self, lease: dict[str, Any], *, seconds: float) -> dict[str, Any]:
        meta = {**lease.get("metadata", {}), "name": self._name, "namespace": self._namespace}
        path = lease_path(self._namespace)
        body = {**lease, "metadata": meta}
        return _decoded(await self._kube.request("POST", path, body=body, seconds=seconds))

    async def write(self, lease: dict[str, Any], *, seconds: float) -> dict[str, Any]:
        path = lease_path(self._namespace, self._name)
        return _decoded(await self._kube.request("PUT", path, body=lease, seconds=seconds))


def record_of(lease: dict[str, Any] | None) -> Record | None:
    """What a Lease says; ApiError where it is none. One without a length lasts a second."""
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
            # Only a release empties both; who clears the holder by hand leaves the address.
            is_released=annotations.get(ANNOTATION_ADDRESS) == ""
            and not spec.get("holderIdentity"),
        )
    except (KeyError, TypeError, AttributeError, ValueError) as err:
        raise ApiError(f"the API server's answer is no Lease: {err!r}") from err


def changed(
    lease: dict[str, Any] | None,
    *,
    holder: str,
    address: str,
    seconds: int,
    now: str,
    takes: bool,
) -> dict[str, Any]:
    """The Lease as it is to be written; all that others have put there stays.

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


def _decoded(body: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except UNDECODABLE as err:
        raise ApiError(f"the API server's answer cannot be read: {err}") from err


def _micro_time(wall_ns: int) -> str:
    """A moment as Leases have it: UTC with microseconds, all six written."""
    seconds, rest = divmod(wall_ns, 10**9)
    whole = dt.datetime.fromtimestamp(seconds, dt.UTC)
    return f"{whole:%Y-%m-%dT%H:%M:%S}.{rest // 1000:06}Z"
