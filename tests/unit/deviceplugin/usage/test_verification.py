"""Which limits are missing: those that the driver does not have, not those that it is silent of."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.driver.interface import MemoryLimit
from deviceplugin.usage.rules import MIB, NO_CGROUP, NOT_READ, ContainerUse
from deviceplugin.usage.verification import UNREAD_SECONDS, Fault, Given, LimitChecks
from tests.fakes.pods import pod

PROMISED = 8192
PROMISE = Given(frozenset({"GPU-0"}), PROMISED, is_promised=True)
KEPT = MemoryLimit(hard_bytes=PROMISED * MIB)
TIGHTER = MemoryLimit(hard_bytes=1024 * MIB)
LESS_TIGHT = MemoryLimit(hard_bytes=99_999 * MIB)
RESERVING = MemoryLimit(hard_bytes=PROMISED * MIB, soft_bytes=PROMISED * MIB)
ONLY_RESERVING = MemoryLimit(soft_bytes=70_000 * MIB)
NONE = MemoryLimit()
UNREAD = MemoryLimit(why_unknown=NO_CGROUP)
SILENT = MemoryLimit(why_unknown=NOT_READ)


def use(limit: MemoryLimit, container_id: str = "1") -> ContainerUse:
    owner = pod("a", 8, uid="uid-a")
    return ContainerUse(owner, "app-0", container_id, "GPU-0", PROMISED, limit=limit)


class Checks:
    def __init__(self) -> None:
        self._checks, self._now = LimitChecks(), 100.0

    def faults(self, *limits: MemoryLimit, seconds: float = 0.0) -> list[tuple[Fault, str]]:
        self._now += seconds
        uses = [(use(each, str(number)), PROMISE) for number, each in enumerate(limits)]
        return [(each.fault, each.why) for each in self._checks.missing(uses, self._now)]


@pytest.mark.parametrize(
    ("limit", "fault", "says"),
    [
        (NONE, Fault.MISSING, "it has no limit"),
        (LESS_TIGHT, Fault.CHANGED, "its limit is 99999 MiB"),
        (RESERVING, Fault.CHANGED, "its limit is 8192 MiB, with 8192 MiB reserved"),
        (ONLY_RESERVING, Fault.CHANGED, "it has no limit, with 70000 MiB reserved"),
    ],
)
def test_a_limit_that_the_driver_does_not_have_is_found_at_once(limit, fault, says):
    ((found, why),) = Checks().faults(KEPT, limit)
    assert found is fault
    assert f"container app-0 was given 8192 MiB of GPU GPU-0, and {says}:" in why


def test_a_tighter_limit_breaks_no_promise():
    assert not Checks().faults(TIGHTER)


def test_a_gpu_that_a_container_was_not_given_is_not_looked_at():
    other = Given(frozenset({"GPU-1"}), PROMISED, is_promised=True)
    assert not LimitChecks().missing([(use(NONE), other), (use(NONE), Given())], 0.0)


def test_a_limit_that_cannot_be_read_is_told_after_a_while():
    checks = Checks()
    assert not checks.faults(UNREAD)
    assert not checks.faults(UNREAD, seconds=UNREAD_SECONDS - 1)
    ((fault, why),) = checks.faults(UNREAD, seconds=1)
    assert fault is Fault.UNREAD
    assert NO_CGROUP in why
    assert not checks.faults(KEPT)


@pytest.mark.parametrize("limit", [LESS_TIGHT, RESERVING, NONE])
def test_a_fault_stays_while_the_limit_cannot_be_read(limit):
    checks = Checks()
    (found,) = checks.faults(limit)
    assert checks.faults(UNREAD) == [found]
    assert checks.faults(SILENT) == [found]
    assert not checks.faults(KEPT)


@pytest.mark.parametrize(
    ("mib", "limit", "fault"),
    [
        (PROMISED, NONE, None),
        (PROMISED, UNREAD, None),
        (PROMISED, LESS_TIGHT, Fault.CHANGED),
        (None, LESS_TIGHT, None),
        (None, ONLY_RESERVING, Fault.CHANGED),
    ],
)
def test_without_a_promise_only_what_an_image_changes_is_found(mib, limit, fault):
    given = Given(frozenset({"GPU-0"}), mib)
    checks = LimitChecks()
    for now in (0.0, UNREAD_SECONDS):
        found = [each.fault for each in checks.missing([(use(limit), given)], now)]
        assert found == ([fault] if fault else [])


def test_a_gpu_that_does_not_answer_makes_no_limit_missing():
    checks = Checks()
    assert not checks.faults(SILENT)
    assert not checks.faults(SILENT, seconds=10 * UNREAD_SECONDS)


@given(st.lists(st.sampled_from([KEPT, NONE, LESS_TIGHT, RESERVING, UNREAD, SILENT]), max_size=12))
def test_what_the_driver_has_said_last_of_a_limit_holds(then):
    checks, last = Checks(), KEPT
    assert not checks.faults(KEPT)
    for limit in then:
        last = last if limit.why_unknown else limit
        assert bool(checks.faults(limit, seconds=UNREAD_SECONDS)) == (last is not KEPT)
