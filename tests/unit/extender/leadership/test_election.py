"""What a replica does when it begins and stops leading."""

import asyncio
from contextlib import suppress

import pytest

from extender.leadership.election import (
    ADDRESS_VARIABLE,
    Elected,
    announced,
    identity,
    require_single_replica,
)
from extender.settings.listeners import Address
from gpushare.errors import SettingsError


class Elector:
    """Leads when the test wants, and runs and cancels ``lead`` as the real one does."""

    def __init__(self) -> None:
        self.leads, self.term = False, "1"
        self._task: asyncio.Task | None = None

    async def run(self, lead, before_release) -> None:
        self._lead = lead
        await asyncio.Event().wait()

    async def take(self) -> None:
        self.leads = True
        self._task = asyncio.create_task(self._lead())
        await turns()

    async def lose(self) -> None:
        self.leads = False
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


class Replica:
    def __init__(self) -> None:
        self.elector, self.listed = Elector(), asyncio.Event()
        self.did: list[str] = []
        self.elected = Elected(
            self.elector,
            settle=self.settle,
            duties=lambda: [self.duty()],
            forget=lambda: self.did.append("forgot"),
            settle_seconds=0,
        )

    async def settle(self) -> None:
        self.did.append("settles")
        await self.listed.wait()

    async def duty(self) -> None:
        self.did.append("works")
        try:
            await asyncio.Event().wait()
        finally:
            self.did.append("rests")


@pytest.fixture
async def replica():
    made = Replica()
    task = asyncio.create_task(made.elected.run(lambda: asyncio.sleep(0)))
    await turns()
    yield made
    if made.elector.leads:
        await made.elector.lose()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_it_decides_only_once_it_has_seen_what_its_predecessor_left(replica):
    assert replica.elected.why_not == "no replica is known to lead"
    await replica.elector.take()
    assert not replica.elected.decides
    assert "has not yet read" in replica.elected.why_not
    assert replica.did == ["settles"]
    replica.listed.set()
    await turns()
    assert replica.elected.decides
    assert replica.did == ["settles", "works"]


@pytest.mark.parametrize(
    "change",
    [
        {"leads": False},  # by its clock; nothing was cancelled yet
        {"term": "2"},  # acquired again, after another replica may have led
    ],
)
async def test_lease_and_term_are_checked_at_every_call(replica, change):
    replica.listed.set()
    await replica.elector.take()
    assert replica.elected.decides
    vars(replica.elector).update(change)
    assert not replica.elected.decides
    await replica.elector.lose()


async def test_a_replica_that_stops_leading_ends_its_duties_and_forgets_pending_decisions(replica):
    replica.listed.set()
    await replica.elector.take()
    await replica.elector.lose()
    assert replica.did[-2:] == ["rests", "forgot"]
    assert not replica.elected.decides


async def test_a_replica_that_leads_again_settles_again(replica):
    replica.listed.set()
    await replica.elector.take()
    await replica.elector.lose()
    replica.listed.clear()
    await replica.elector.take()
    assert not replica.elected.decides
    assert replica.did[-1] == "settles"


async def test_a_replica_that_loses_the_lease_before_it_settled_never_decides(replica):
    await replica.elector.take()
    await replica.elector.lose()
    assert replica.did == ["settles", "forgot"]


def test_two_processes_of_one_machine_have_different_identities():
    assert identity() != identity()


@pytest.mark.parametrize(
    ("host", "variable", "wanted"),
    [
        ("10.0.0.1", "", "10.0.0.1:5"),
        ("0.0.0.0", "10.0.0.2", "10.0.0.2:5"),
        ("::", "fd00::1", "[fd00::1]:5"),
    ],
)
def test_a_replica_announces_a_reachable_address(monkeypatch, host, variable, wanted):
    monkeypatch.setenv(ADDRESS_VARIABLE, variable)
    assert announced(Address(host, 5)) == wanted


def test_an_unreachable_address_is_rejected(monkeypatch):
    monkeypatch.delenv(ADDRESS_VARIABLE, raising=False)
    with pytest.raises(SettingsError, match=ADDRESS_VARIABLE):
        announced(Address("0.0.0.0", 5))


def test_a_replica_of_several_requires_an_election(monkeypatch):
    require_single_replica()
    monkeypatch.setenv(ADDRESS_VARIABLE, "10.0.0.1")
    with pytest.raises(SettingsError, match="leaderElection is missing"):
        require_single_replica()
