"""Decides whether this replica leads, and what it does when it begins and stops leading."""

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, Protocol

from extender.binding.timing import WRITE_SECONDS
from extender.settings.listeners import Address
from gpushare.errors import SettingsError
from gpushare.kube.lease import DRIFT, Elector
from gpushare.text.manual import manual

log = logging.getLogger(__name__)

# When the predecessor's lease has ended, the API server may still process its last write.
SETTLE_SECONDS: Final = WRITE_SECONDS * (1 + 2 * DRIFT)
ADDRESS_VARIABLE: Final = "GPUSHARE_ADDRESS"
_WILDCARDS: Final = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - must not be announced


class Leadership(Protocol):
    """Whether this replica decides. Ask at every call and never keep the answer.

    ``why_not`` is for a caller whose request cannot be forwarded.
    """

    @property
    def decides(self) -> bool: ...

    @property
    def why_not(self) -> str: ...


class SingleReplica:
    """The leadership of an extender that never has other replicas."""

    decides = True
    why_not = ""


class Elected:
    """Leads by a Lease, and runs everything that only the leader does.

    ``settle`` reads the cluster as the predecessor left it. ``duties`` run while this replica
    decides. ``forget`` drops pending decisions, at the latest when another replica may decide.
    """

    def __init__(
        self,
        elector: Elector,
        *,
        settle: Callable[[], Awaitable[None]],
        duties: Callable[[], Sequence[Coroutine[Any, Any, None]]],
        forget: Callable[[], None],
        settle_seconds: float = SETTLE_SECONDS,
    ) -> None:
        self._elector = elector
        self._settle, self._duties, self._forget = settle, duties, forget
        self._settle_seconds = settle_seconds
        self._settled_for: str | None = None

    @property
    def decides(self) -> bool:
        elector = self._elector
        return self._settled_for is not None and elector.leads and elector.term == self._settled_for

    @property
    def why_not(self) -> str:
        if self._elector.leads:
            return "this replica leads but has not yet read the cluster's state"
        return "no replica is known to lead"

    async def run(self, before_release: Callable[[], Awaitable[None]]) -> None:
        """Run until cancelled, then release the lease once ``before_release`` has finished."""
        await self._elector.run(self._lead, before_release)

    async def _lead(self) -> None:
        term = self._elector.term
        try:
            await asyncio.sleep(self._settle_seconds)
            await self._settle()
            self._settled_for = term
            log.info("this replica decides")
            async with asyncio.TaskGroup() as group:
                for duty in self._duties():
                    group.create_task(duty)
        finally:
            self._settled_for = None
            self._forget()


def identity() -> str:
    """Return a name that is unique to this process."""
    return f"{socket.gethostname()}_{secrets.token_hex(8)}"


def require_single_replica() -> None:
    """Raise SettingsError if there may be other replicas although no election is configured.

    Only deployments with replicas set GPUSHARE_ADDRESS; without an election all would decide.
    """
    if os.environ.get(ADDRESS_VARIABLE):
        raise SettingsError(
            f"leaderElection is missing although {ADDRESS_VARIABLE} is set, so there may be other "
            "replicas, and each would decide on its own: add leaderElection to the configuration "
            f"({manual('reference/settings.md#the-configuration-file')}), or remove the variable "
            "if there is one replica"
        )


def announced(address: Address) -> str:
    """Return ``host:port`` where other replicas reach one that listens on ``address``.

    GPUSHARE_ADDRESS names the host, because all replicas share one configuration. Raise
    SettingsError if neither names a host.
    """
    host = os.environ.get(ADDRESS_VARIABLE, "") or address.host
    if host in _WILDCARDS:
        raise SettingsError(
            f"leaderElection.address.host is {address.host!r}, where other replicas cannot reach "
            f"this one: set {ADDRESS_VARIABLE} to its own address (status.podIP)"
        )
    return f"[{host}]:{address.port}" if ":" in host else f"{host}:{address.port}"
