"""Runs of replicas with faults and clocks on virtual time keep all promises."""

import os
import subprocess
import sys

import pytest

from tests.simulation.__main__ import told
from tests.simulation.mutants import caught
from tests.simulation.run import simulate

RUNS = 300 if os.environ.get("GPUSHARE_LONG") else 110  # `make trials` has more
ITEMS = 12  # so that all processes of `make test` have some
REPLAYED_SEED = 3  # with gangs, gated ones too
FAST = {
    "forget pods whose card nobody can tell": 30,
    "count a pod with a deletionTimestamp as gone": 30,
    "forget what pods without GPU memory use after a list": 30,
    "take over gangs that have begun without a plan": 100,
    "give a gang a few seconds to become whole": 30,
    "plan a gang without room only once": 30,
    "let pods rest for ever that did not come to their room": 30,
    "place pods beyond the quota of their namespace": 30,
}


@pytest.mark.parametrize("item", range(ITEMS))
def test_whatever_goes_wrong_no_card_is_given_twice_and_every_pod_that_fits_is_bound(item):
    results = [simulate(seed) for seed in range(1 + item, 1 + RUNS, ITEMS)]
    failed = [told(result) for result in results if result.violations]
    assert not failed, "\n".join(failed)
    assert sum(result.bindings for result in results) > len(results)


def test_a_seed_is_the_same_run_in_every_process():
    command = [sys.executable, "-m", "tests.simulation", "--seed", str(REPLAYED_SEED)]
    traces = {
        subprocess.run(
            command, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(traces) == 1
    assert b"pod bound" in traces.pop()


@pytest.mark.parametrize("mutant", FAST)
def test_a_known_defect_is_caught(mutant):
    assert caught(mutant, FAST[mutant]) is not None
