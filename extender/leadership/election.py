"""Which replica decides, and what it does before it begins and once it ends."""

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, Protocol

from extender.binding.binder import WRITE_SECONDS
from extender.settings.configuration import Address
from gpushare.errors import SettingsError
from gpushare.kube.lease import DRIFT, Elector

log = logging.getLogger(__name__)

# The API server may still work on a predecessor's last write when that one's lease has ended.
SETTLE_SECONDS: Final = WRITE_SECONDS * (1 + 2 * DRIFT)
ADDRESS_VARIABLE: Final = "GPUSHARE_ADDRESS"
_WILDCARDS: Final = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - what must not be announced


class Leadership(Protocol):
    """Who decides now. Asked for every call, never remembered."""

    @property
    def decides(self) -> bool:
        """Whether this replica may decide at this very moment."""
        ...

    @property
    def why_not(self) -> str:
        """Why it may not; for whoever asked and cannot be handed on."""
        ...


class Alone:
    """The only replica there ever is."""

    decides = True
    why_not = ""


class Elected:
    """Leads by a Lease. All that only a leader does is run from here.

    ``settle``: see the cluster as the predecessor left it. ``duties``: what runs while this replica
    decides. ``forget``: drop what was held for decisions, at the latest when another may decide.
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
            return "this replica leads and is not settled yet"
        return "no replica is known to lead"

    async def run(self, before_release: Callable[[], Awaitable[None]]) -> None:
        """Until cancelled; then the lease is let go of once ``before_release`` is over."""
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
    """A name that no other process has, nor this one's successor on the same machine."""
    return f"{socket.gethostname()}_{secrets.token_hex(8)}"


def refuse_alone() -> None:
    """Raise SettingsError where this is one replica of several, and no election is configured.

    GPUSHARE_ADDRESS is set for replicas alone: each of them would decide without the others.
    """
    if os.environ.get(ADDRESS_VARIABLE):
        raise SettingsError(
            f"leaderElection is missing and {ADDRESS_VARIABLE} is set, so there may be other "
            "replicas, and each would decide alone: add leaderElection to the configuration "
            "(docs/install.md), or take the variable away where there is one replica"
        )


def announced(address: Address) -> str:
    """``host:port`` where others reach a replica that listens on ``address``.

    The variable GPUSHARE_ADDRESS names the host where the configuration, being the same for all
    replicas, cannot. SettingsError where none says it.
    """
    host = os.environ.get(ADDRESS_VARIABLE, "") or address.host
    if host in _WILDCARDS:
        raise SettingsError(
            f"leaderElection.address.host is {address.host!r}, where others cannot reach this "
            f"replica: set {ADDRESS_VARIABLE} to its own address (status.podIP)"
        )
    return f"[{host}]:{address.port}" if ":" in host else f"{host}:{address.port}"
