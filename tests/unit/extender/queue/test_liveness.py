"""Nothing is kept for nobody, and nobody starves: a queue that nobody joins any more empties."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extender.decisions.queue.head_claims import HeadClaims
from extender.decisions.queue.waiting_pods import WaitingPods
from extender.queue import admission_round
from extender.queue.head_claims import HeadClaiming
from extender.watch import grace
from gpushare.quota.order import Given
from tests.unit.extender.queue.lives import Life, Stuck

MOST_LIVES = 40  # until a defect is found


@pytest.fixture(autouse=True, scope="module")
def no_waits() -> Iterator[None]:
    """Let no call wait in real time for a watch that is never behind."""
    with patch.object(grace, "SECONDS", 0.0):
        yield


async def live(seed: int, order: str, *, backfill: bool) -> Stuck | None:
    """Live; in every second life a round ends after the first entry without room."""
    seconds = 0.0 if seed % 2 else 1.0
    with (
        patch.object(admission_round, "FRONT_SECONDS", seconds),
        patch.object(admission_round, "TURNS_SECONDS", seconds),
    ):
        return await Life(seed, order, backfill=backfill).stuck()


@pytest.mark.parametrize("backfill", [True, False])
@pytest.mark.parametrize("order", ["fair", "fifo"])
@given(seed=st.integers(0, 2**32))
@settings(max_examples=8)
async def test_all_that_fits_an_empty_cluster_is_placed_in_the_end(order, backfill, seed):
    assert await live(seed, order, backfill=backfill) is None


@contextmanager
def _claims_never_end() -> Iterator[None]:
    async def renew(*_: object) -> None: ...

    with (
        patch.object(HeadClaiming, "_renew", renew),
        patch.object(HeadClaims, "given", lambda *_: Given.NOTHING),
    ):
        yield


# The defect, and whether lives with backfill show it.
DEFECTS: dict[str, tuple[Callable[[], AbstractContextManager[object]], bool]] = {
    "the owner of a claim waits behind others, for ever": (_claims_never_end, False),
    "a pod that did not come to its room gets it again at once": (
        lambda: patch.object(WaitingPods, "_lost_slot", lambda self, uid, _: self._enter(uid)),
        True,
    ),
    "an entry that can never start holds up all others": (
        lambda: patch.object(HeadClaiming, "is_passed_over", lambda *_: False),
        False,
    ),
}


@pytest.mark.parametrize("defect", DEFECTS)
async def test_a_defect_that_keeps_something_for_nobody_is_found(defect):
    put_in, backfill = DEFECTS[defect]
    with put_in():
        for seed in range(1, MOST_LIVES):
            if await live(seed, "fair", backfill=backfill) is not None:
                return
    pytest.fail(f"no life in {MOST_LIVES} is stuck")
