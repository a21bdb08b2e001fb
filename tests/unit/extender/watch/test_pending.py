"""Which pods kube-scheduler should ask about, and what the smallest of them asks for."""

import msgspec

from extender.watch.pending import Pending
from gpushare.objects.model import SchedulingGate
from tests.builders import pod


def test_pods_without_a_node_are_counted_until_they_have_one_or_are_gone():
    pending = Pending()
    pending.look_at(pod("a", 6))
    pending.look_at(pod("b", 2))
    assert (len(pending), pending.least_units) == (2, 2)
    pending.look_at(pod("b", 2, node="n"))
    assert (len(pending), pending.least_units) == (1, 6)
    pending.forget("uid-a")
    assert (len(pending), pending.least_units) == (0, 0)


def test_a_pod_that_a_gate_holds_back_is_not_asked_about_yet():
    pending = Pending()
    free = pod("a", 6)
    spec = msgspec.structs.replace(free.spec, scheduling_gates=(SchedulingGate("wait"),))
    pending.look_at(msgspec.structs.replace(free, spec=spec))
    assert len(pending) == 0
    pending.look_at(free)
    assert len(pending) == 1


def test_a_pod_that_asks_for_what_nobody_can_have_says_nothing_of_the_smallest():
    pending = Pending()
    pending.look_at(pod("a", "many"))
    assert (len(pending), pending.least_units) == (1, 0)
    pending.look_at(pod("b", 9))
    assert (len(pending), pending.least_units) == (2, 9)
