"""Trials on several versions of Kubernetes."""

import importlib

import pytest

from localcluster.errors import UsageError
from localcluster.versions import DEFAULT, NATIVE_GANGS, versions
from tests.cluster.kubernetes import CHOICES, VARIABLE, chosen
from tests.trials.versions import TRIALS


def test_a_run_has_the_default_version_unless_it_chooses_another(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert chosen().version == DEFAULT
    monkeypatch.setenv(VARIABLE, "1.37-native-gangs")
    assert chosen().has_native_gangs
    assert NATIVE_GANGS.gates.items() <= chosen().features.gates.items()


def test_an_unknown_version_is_refused_with_the_known_ones(monkeypatch):
    monkeypatch.setenv(VARIABLE, "1.26")
    with pytest.raises(UsageError, match=r"GPUSHARE_KUBERNETES is '1\.26'; wanted one of: 1\.27,"):
        chosen()


def test_every_version_can_be_chosen():
    assert {each.version for each in CHOICES.values()} == set(versions())


@pytest.mark.parametrize("name", TRIALS)
def test_every_trial_can_be_run(name):
    found = importlib.import_module(name)
    if hasattr(found, "__path__"):  # `python -m` runs the package's __main__
        found = importlib.import_module(f"{name}.__main__")
    assert callable(found.main)
