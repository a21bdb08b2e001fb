"""What kube-scheduler preempts: only who is needed, no part of a gang, and for whom it was done."""

import pytest

from extender.decisions.preemption.nominated import REMOVED_SECONDS
from extender.decisions.preemption.proposals import Veto
from extender.decisions.preemption.records import PreemptionRecord
from gpushare.contract import ANNOTATION_CARDS
from gpushare.ledger.holds import Hold, Slot
from gpushare.objects.scheduling import Present, Volume
from tests.builders import node, pod
from tests.gangs import member
from tests.unit.extender.scripted import DELETED, Bench, bound, changed


@pytest.fixture
def bench():
    """Node n: two cards of 16, each with 8 + 8 of priority 0."""
    made = Bench(16, 16)
    for name, card in (("a1", 0), ("a2", 0), ("b1", 1), ("b2", 1)):
        made.add(bound(name, 8, f"GPU-{card}"))
    return made


def waiting(name="high", units=16, priority=100, *, nominated=None):
    made = pod(name, units)
    status = {"nominated_node_name": nominated}
    return changed(made, spec={"priority": priority}, status=status)


def judge(bench, pod, *names, at="n"):
    found = bench.cluster.scheduling.proposals.judge(pod, {at: [f"uid-{name}" for name in names]})
    return [uid.removeprefix("uid-") for uid in found.kept.get(at, ())], found.vetoed.get(at)


def offered(bench, pod, at="n"):
    return at in bench.cluster.scheduling.filter(pod, [at]).fitting


def end(bench, name):
    bench.cluster.pod_deleted(bench.kube.pods.pop(name))


def terminate(bench, name, grace=30):
    meta = DELETED | {"deletion_grace_period_seconds": grace}
    bench.add(changed(bench.kube.pods[name], meta))


def test_of_victims_on_two_cards_only_those_on_one_are_evicted(bench):
    kept, _ = judge(bench, waiting(), "a1", "a2", "b1")
    assert kept == ["a1", "a2"]
    assert judge(bench, waiting(units=8), "a1", "b1")[0] in (["a1"], ["b1"])


def test_nobody_is_evicted_for_a_pod_that_fits_by_now(bench):
    other = bound("m1", 16, "GPU-0", node="m")
    bench.cluster.node_changed(node("m", 16))
    bench.add(other)
    end(bench, "a1")
    proposed = {"m": ["uid-m1"], "n": ["uid-a2"]}
    found = bench.cluster.scheduling.proposals.judge(waiting(units=8), proposed)
    assert found.kept == {}
    assert {veto for veto, _ in found.vetoed.values()} == {Veto.FITS}


def test_a_victim_is_kept_for_the_cpu_that_it_uses(bench):
    cpu = {"cpu": "4"}
    made = node("n", 16, 16)
    bench.cluster.node_changed(
        changed(made, status={"allocatable": made.allocatable | {"cpu": "8"}})
    )
    for name, card in (("c1", 0), ("c2", 1)):
        use = bound(name, 1, f"GPU-{card}")
        bench.cluster.pod_deleted(bench.kube.pods.pop("a1" if card == 0 else "b1"))
        bench.add(with_requests(use, cpu))
    asks = with_requests(waiting(units=8), {"cpu": "8"})
    assert judge(bench, asks, "c1", "c2")[0] == ["c1", "c2"]
    asks = with_requests(waiting(units=8), {"cpu": "4"})
    assert len(judge(bench, asks, "c1", "c2")[0]) == 1


def with_requests(made, requests):
    container = made.containers[0]
    both = container.resources.limits | requests
    resources = type(container.resources)(both, both)
    return changed(made, spec={"containers": (type(container)(container.name, resources),)})


def test_kube_scheduler_decides_about_victims_of_a_pod_whose_rules_only_it_knows(bench):
    volumes = (Volume(persistent_volume_claim=Present()),)
    asks = changed(waiting(), spec={"volumes": volumes})
    assert judge(bench, asks, "a1", "a2", "b1")[0] == ["a1", "a2", "b1"]


def gang_member(name, gang, minimum, card):
    made = member(name, gang, minimum, units=16, node="n", priority=0)
    return changed(made, {"annotations": {ANNOTATION_CARDS: card}, "namespace": "default"})


@pytest.mark.parametrize(("minimum", "is_kept"), [(1, True), (2, False)])
def test_no_member_is_evicted_whose_gang_would_go_on_with_too_few(minimum, is_kept):
    made = Bench(16, 16)
    for number in range(2):
        made.add(gang_member(f"g{number}", "g", minimum, f"GPU-{number}"))
    victim = made.kube.pods["g0"].uid
    found = made.cluster.scheduling.proposals.judge(waiting(), {"n": [victim]})
    assert (found.kept == {"n": (victim,)}) is is_kept
    if not is_kept:
        assert found.vetoed["n"][0] is Veto.BREAKS_GANG


def test_a_gang_whose_members_are_all_needed_is_evicted_as_a_whole():
    made = Bench(16, 16)
    for number in range(2):
        made.add(gang_member(f"g{number}", "g", 2, f"GPU-{number}"))
    uids = [pod.uid for pod in made.kube.pods.values()]
    asks = changed(waiting(units=32), {"labels": {"aliyun.com/gpu-count": "2"}})
    assert made.cluster.scheduling.proposals.judge(asks, {"n": uids}).kept == {"n": tuple(uids)}


def test_a_gang_of_which_a_member_is_being_bound_is_not_evicted():
    made = Bench(16, 16)
    for number in range(2):
        made.add(gang_member(f"g{number}", "g", 2, f"GPU-{number}"))
    uids = [pod.uid for pod in made.kube.pods.values()]
    made.add(changed(member("g2", "g", 2, units=16, priority=0), {"namespace": "default"}))
    last = made.kube.pods["g2"]
    asks = changed(waiting(units=32), {"labels": {"aliyun.com/gpu-count": "2"}})
    judge = made.cluster.scheduling.proposals.judge
    made.cluster.ledger.keep(Hold("g", (Slot("m", (), 0, last.uid),), 1e9))
    assert judge(asks, {"n": uids}).vetoed["n"][0] is Veto.BREAKS_GANG
    made.cluster.ledger.drop(Hold, "g")
    assert judge(asks, {"n": uids}).kept == {"n": tuple(uids)}


def test_no_member_is_evicted_because_a_plan_may_evict_the_others():
    """The plan may be stopped before."""
    made = Bench(16, 16)
    for number in range(2):
        made.add(gang_member(f"g{number}", "g", 2, f"GPU-{number}"))
    first, second = made.kube.pods.values()
    other = waiting("other")
    record = PreemptionRecord(other.uid, other.key, 100, {other.uid: other}, (), (first, second), 0)
    made.cluster.scheduling.preemptions.put(record)
    judge = made.cluster.scheduling.proposals.judge
    assert judge(waiting(), {"n": [second.uid]}).vetoed["n"][0] is Veto.BREAKS_GANG
    record.evicted.add(first.uid)
    assert judge(waiting(), {"n": [second.uid]}).kept == {"n": (second.uid,)}


def test_members_that_have_succeeded_count_for_the_gang():
    made = Bench(16, 16)
    for number in range(2):
        made.add(gang_member(f"g{number}", "g", 2, f"GPU-{number}"))
    gangs = made.cluster.scheduling.gangs
    group = gangs.group_of(made.kube.pods["g0"])
    gangs.ended(group, 1, frozenset({""}))
    victim = made.kube.pods["g0"].uid
    found = made.cluster.scheduling.proposals.judge(waiting(), {"n": [victim]})
    assert found.kept == {"n": (victim,)}


def test_kube_scheduler_evicts_nobody_for_a_pod_for_which_the_extender_does(bench):
    asks = waiting()
    record = PreemptionRecord(asks.uid, asks.key, 100, {asks.uid: asks}, (), (), 0)
    bench.cluster.scheduling.preemptions.put(record)
    assert judge(bench, asks, "a1", "a2")[1][0] is Veto.OWN_EVICTION


def test_freed_units_are_kept_for_the_nominated_pod(bench):
    """S4: a pod of a lower priority must not get the card that was emptied for another one."""
    high = waiting(nominated="n")
    bench.add(high)
    judge(bench, high, "a1", "a2")
    for name in ("a1", "a2"):
        terminate(bench, name)
        end(bench, name)
    assert not offered(bench, waiting("equal", 16, 100))
    assert not offered(bench, waiting("low", 1, 0))
    assert offered(bench, waiting("higher", 16, 101))
    assert offered(bench, high)


def test_units_are_kept_before_kube_scheduler_has_written_the_nominated_node(bench):
    high = waiting()
    bench.add(high)
    judge(bench, high, "a1", "a2")
    for name in ("a1", "a2"):
        end(bench, name)
    assert not offered(bench, waiting("low", 8, 0))
    # It has written none: its evictions failed.
    bench.time.now += 6
    bench.cluster.expire_plans()
    assert offered(bench, waiting("low", 8, 0))


def test_units_are_kept_when_kube_scheduler_sees_the_end_of_the_victims_first(bench):
    """It tries the pod before the extender has seen that, and removes the nominated node."""
    bench.add(waiting(nominated="n"))
    for name in ("a1", "a2"):
        terminate(bench, name)
    bench.add(waiting(nominated="n"))
    bench.time.now += 30
    high = waiting()
    assert not offered(bench, high)
    bench.add(high)
    bench.time.now += 1
    for name in ("a1", "a2"):
        end(bench, name)
    bench.cluster.scheduling.nominated.renew()
    bench.cluster.expire_plans()
    assert not offered(bench, waiting("equal", 8, 100))
    assert offered(bench, high)


def test_nobody_more_is_evicted_before_the_extender_sees_the_end_of_the_victims(bench):
    bench.cluster.node_changed(node("m", 16))
    bench.add(bound("m1", 16, "GPU-0", node="m"))
    high = waiting(nominated="n")
    judge(bench, high, "a1", "a2")
    bench.add(high)
    bench.time.now += 3
    for name in ("a1", "a2"):
        terminate(bench, name)
    bench.time.now += 30
    # kube-scheduler sees no victim any more, and tries the pod.
    assert judge(bench, high, "m1", at="m")[1][0] is Veto.ROOM_IS_MADE
    for name in ("a1", "a2"):
        end(bench, name)
    assert judge(bench, high, "m1", at="m")[1][0] is Veto.ROOM_IS_MADE
    # It was tried again, and kube-scheduler keeps it from the node for reasons of its own.
    assert judge(bench, high, "m1", at="m")[0] == ["m1"]


def test_others_are_evicted_if_a_more_important_pod_has_taken_the_room(bench):
    high = waiting(nominated="n")
    judge(bench, high, "a1", "a2")
    bench.add(high)
    for name in ("a1", "a2"):
        end(bench, name)
    bench.add(changed(bound("top", 16, "GPU-0"), spec={"priority": 200}))
    assert judge(bench, high, "b1", "b2")[0] == ["b1", "b2"]


def test_a_nominated_pod_is_offered_the_cards_of_those_that_end_not_of_those_that_stay(bench):
    bench.add(waiting(nominated="n"))
    assert not any(e.claimed for e in bench.cluster.ledger.account("n").cards)
    for name in ("b1", "b2"):
        terminate(bench, name)
    bench.cluster.scheduling.nominated.renew()
    bench.add(waiting(nominated="n"))
    assert [e.claimed for e in bench.cluster.ledger.account("n").cards] == [0, 16]


def test_nothing_stays_claimed_for_a_pod_that_is_bound_deleted_or_not_nominated_any_more(bench):
    def claimed():
        return sum(e.claimed for e in bench.cluster.ledger.account("n").cards)

    for name in ("a1", "a2"):
        terminate(bench, name)
    bench.add(waiting(nominated="n"))
    assert claimed() == 16
    bench.add(waiting())
    bench.time.now += REMOVED_SECONDS
    bench.cluster.expire_plans()
    assert claimed() == 0
    bench.add(waiting(nominated="n"))
    assert claimed() == 16
    bench.cluster.pod_deleted(bench.kube.pods["high"])
    assert claimed() == 0
    bench.add(waiting(nominated="n"))
    for name in ("a1", "a2"):
        end(bench, name)
    bench.add(changed(bound("high", 16), spec={"priority": 100}))
    assert claimed() == 0


def test_other_cards_are_claimed_when_the_claimed_one_fails(bench):
    for name in ("a1", "a2", "b1", "b2"):
        terminate(bench, name)
    bench.add(waiting(nominated="n"))
    bench.cluster.node_changed(node("n", 16, 16, unhealthy=[0]))
    bench.cluster.scheduling.nominated.renew()
    assert [e.claimed for e in bench.cluster.ledger.account("n").cards] == [0, 16]


def test_a_new_leader_claims_for_nominated_pods_before_it_decides(bench):
    for name in ("a1", "a2"):
        terminate(bench, name)
    bench.add(waiting(nominated="n"))
    bench.cluster.scheduling.forget()
    assert sum(e.claimed for e in bench.cluster.ledger.account("n").cards) == 0
    bench.cluster.scheduling.nominated.claim_all()
    assert sum(e.claimed for e in bench.cluster.ledger.account("n").cards) == 16


def test_nothing_is_kept_for_a_nominated_pod_of_a_scheduler_that_does_not_ask(bench):
    terminate(bench, "a1")
    bench.add(changed(waiting(units=8, nominated="n"), spec={"scheduler_name": "another"}))
    end(bench, "a1")
    assert offered(bench, waiting("low", 8, 0))


async def test_a_more_important_pod_gets_claimed_room_only_if_there_is_no_other(bench):
    for name in ("a1", "a2", "b1", "b2"):
        end(bench, name)
    bench.add(waiting(nominated="n"))  # claims one of two free cards
    claimed = [e.claimed > 0 for e in bench.cluster.ledger.account("n").cards]
    assert sorted(claimed) == [False, True]
    bench.cluster.node_changed(node("m", 16))
    for number in range(2):
        higher = waiting(f"higher-{number}", 16, 200)
        bench.add(higher)
        best = bench.cluster.scheduling.filter(higher, ["n", "m"]).best
        await bench.bind(higher, best)
        cards = bench.kube.pods[higher.metadata.name].annotations[ANNOTATION_CARDS]
        assert best == "m" or not claimed[int(cards.removeprefix("GPU-"))]
        bench.watch_catches_up()
    last = waiting("last", 16, 200)
    assert offered(bench, last)
    assert not offered(bench, waiting("equal", 16, 100))


@pytest.mark.parametrize("is_proposed", [True, False])
def test_kube_scheduler_may_preempt_elsewhere_once_victims_do_not_end_in_time(bench, is_proposed):
    """It does so only if the nominated node is unresolvable by preemption."""
    scheduling = bench.cluster.scheduling
    for name in ("m1", "m2"):
        bench.add(bound(name, 8, "GPU-0", node="m"))
    bench.cluster.node_changed(node("m", 16))
    high = waiting(nominated="n")
    if is_proposed:
        assert judge(bench, waiting(), "a1", "a2")[0] == ["a1", "a2"]
        assert "n" in scheduling.filter(high, ["n"]).failed  # the watch shows no deletion yet
    terminate(bench, "a1", grace=30)
    terminate(bench, "a2", grace=30)
    bench.add(high)
    bench.time.now += 60
    scheduling.nominated.renew()
    found = scheduling.filter(high, ["n", "m"])
    assert (found.failed.keys(), found.final.keys()) == ({"n"}, {"m"})
    bench.time.now += 60
    scheduling.nominated.renew()
    found = scheduling.filter(high, ["n", "m"])
    assert (found.failed.keys(), found.final.keys()) == (set(), {"n", "m"})
    end(bench, "a1")
    end(bench, "a2")
    scheduling.nominated.renew()
    assert offered(bench, high)
