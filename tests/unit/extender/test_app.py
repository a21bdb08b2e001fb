"""What the composition refuses before it serves anything."""

import pytest

from extender.app import _elector
from extender.configuration import Address, LeaderElection
from gpushare.errors import SettingsError


def test_an_election_without_an_address_says_what_is_missing():
    with pytest.raises(SettingsError, match=r"leaderElection\.address is missing"):
        _elector(LeaderElection(), None)


def test_an_election_whose_times_cannot_work_says_so():
    election = LeaderElection(renew_seconds=6.0, address=Address("10.0.0.1", 1))
    with pytest.raises(SettingsError, match="shorter than the one before"):
        _elector(election, None)


def test_without_an_election_there_is_none():
    assert _elector(None, None) is None
