"""Which limits are missing: those that the driver does not have, never those that were in force."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.driver.interface import MemoryLimit
from deviceplugin.usage.rules import MIB, NO_CGROUP, NOT_READ, ContainerUse
from deviceplugin.usage.verification import UNREAD_SECONDS, LimitChecks, Promise
from tests.fakes.pods import pod

PROMISED = 8192
PROMISE = Promise(frozenset({"GPU-0"}), PROMISED)
KEPT = MemoryLimit(hard_bytes=PROMISED * MIB, used_bytes=0)
TIGHTER = MemoryLimit(hard_bytes=1024 * MIB, used_bytes=0)
LESS_TIGHT = MemoryLimit(hard_bytes=99_999 * MIB, used_bytes=0)
NONE = MemoryLimit()
UNREAD = MemoryLimit(why_unknown=NO_CGROUP)
SILENT = MemoryLimit(why_unknown=NOT_READ)


def use(limit: MemoryLimit, container_id: str = "1") -> ContainerUse:
    owner = pod("a", 8, uid="uid-a")
    return ContainerUse(owner, "app-0", container_id, "GPU-0", PROMISED, limit=limit)


class Checks:
    def __init__(self) -> None:
        self._checks, self._now = LimitChecks(), 100.0

    def texts(self, *limits: MemoryLimit, seconds: float = 0.0) -> list[str]:
        self._now += seconds
        uses = [(use(each, str(number)), PROMISE) for number, each in enumerate(limits)]
        found = self._checks.missing(uses, self._now)
        assert {each.is_unread for each in found} <= {
            "cannot be read" in each.why for each in found
        }
        return [each.why for each in found]


@pytest.mark.parametrize(
    ("limit", "has"),
    [(NONE, "the driver has none"), (LESS_TIGHT, "the driver has 99999 MiB")],
)
def test_a_limit_that_the_driver_does_not_have_is_missing_at_once(limit, has):
    (text,) = Checks().texts(KEPT, limit)
    assert "container app-0 should be limited to 8192 MiB of GPU GPU-0" in text
    assert has in text


def test_a_limit_that_cannot_be_read_is_missing_after_a_while():
    checks = Checks()
    assert not checks.texts(UNREAD)
    assert not checks.texts(UNREAD, seconds=UNREAD_SECONDS - 1)
    (text,) = checks.texts(UNREAD, seconds=1)
    assert NO_CGROUP in text
    assert not checks.texts(KEPT)


def test_a_tighter_limit_breaks_no_promise():
    assert not Checks().texts(TIGHTER)


def test_a_gpu_that_a_container_was_not_given_is_not_looked_at():
    other = Promise(frozenset({"GPU-1"}), PROMISED)
    assert not LimitChecks().missing([(use(NONE), other), (use(NONE), Promise())], 0.0)


def test_a_gpu_that_does_not_answer_makes_no_limit_missing():
    checks = Checks()
    assert not checks.texts(SILENT)
    assert not checks.texts(SILENT, seconds=10 * UNREAD_SECONDS)


@given(st.lists(st.sampled_from([KEPT, NONE, LESS_TIGHT, UNREAD, SILENT]), max_size=12))
def test_a_limit_that_was_in_force_is_never_missing(then):
    checks = Checks()
    assert not checks.texts(KEPT)
    for limit in then:
        assert not checks.texts(limit, seconds=UNREAD_SECONDS)
