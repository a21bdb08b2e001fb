"""Plans that end early: budgets, refused evictions, faults, and a new leader."""

import pytest

from extender.decisions.preemption.records import FIRST_WAIT_SECONDS
from gpushare.preemption.ending import LATE_SECONDS, MOST_GRACE_SECONDS
from tests.builders import node
from tests.unit.extender.gangs.store import StoredBudget
from tests.unit.extender.preemption.stage import GRACE_SECONDS
from tests.unit.extender.preemption.two_gpus import claimed, fill, fill_in_units, in_vain, staged
from tests.unit.extender.scripted import changed

YEAR = {"termination_grace_period_seconds": 31_536_000}


def test_no_pod_below_a_budget_is_evicted():
    with staged() as stage:
        fill(stage)
        stage.store.put_budget("none", StoredBudget("a", 0))
        stage.start()
        stage.put("high", 10, priority=100)
        stage.go(GRACE_SECONDS + 2)
        assert stage.evicted == ["b"]
    with staged() as stage:
        fill(stage)
        stage.store.put_budget("none", StoredBudget("", 0))
        stage.start()
        stage.put("high", 10, priority=100)
        stage.go(10)
        assert stage.evicted == []
        assert claimed(stage) == 0


@pytest.mark.parametrize("number", [1, 4, 12, 40])
@pytest.mark.parametrize("members", [0, 2])
def test_budgets_of_many_namespaces_hide_no_victims_of_another(number, members):
    nodes = {f"n{each:02}": (16,) for each in range(number + 2)}
    with staged(nodes) as stage:
        stage.preempts = False
        for each, at in enumerate(nodes):
            name = f"spare-{each}" if each >= number else f"kept-{each}"
            namespace = "spare" if each >= number else f"team-{each}"
            stage.put_bound(name, 16, at=at, namespace=namespace)
            if each < number:
                stage.store.put_budget(name, StoredBudget(name, 0, namespace))
        stage.start()
        for each in range(members or 1):
            gang = {"gang": "g", "minimum": members} if members else {}
            stage.put(f"high-{each}", 16, priority=100, **gang)
        stage.go(GRACE_SECONDS + 8)
        assert len(stage.evicted) == (members or 1)
        assert all(name.startswith("spare") for name in stage.evicted)
        assert stage.store.lists <= 3 * number


@pytest.mark.parametrize("policy", [None, "AlwaysAllow"])
@pytest.mark.parametrize(("phase", "ready"), [("Pending", False), ("Running", False)])
def test_a_pod_that_a_spent_budget_does_not_guard_is_evicted(policy, phase, ready):
    with staged({"n": (16,)}) as stage:
        stage.put_bound("a", 16, phase=phase, ready=ready)
        stage.store.put_budget("spent", StoredBudget("a", 0, policy=policy, desired=1))
        stage.preempts = False
        stage.start()
        stage.put("high", 16, priority=100)
        stage.go(GRACE_SECONDS + 3)
        is_guarded = phase == "Running" and policy is None
        assert stage.evicted == ([] if is_guarded else ["a"])
        assert ("high" in stage.bound()) is not is_guarded


def test_a_pod_that_two_budgets_select_is_never_evicted():
    with staged() as stage:
        stage.put_bound("a", 10, "GPU-0")
        stage.put_bound("b", 10, "GPU-1", priority=100)
        stage.store.put_budget("one", StoredBudget("a", 5))
        stage.store.put_budget("two", StoredBudget("", 5))
        stage.start()
        stage.put("high", 10, priority=100)
        stage.go(10)
        assert stage.evicted == []


def test_a_budget_that_appears_after_the_trial_stops_the_plan():
    with staged({"n": (8, 8)}) as stage:
        for number in range(2):
            stage.put_bound(f"a-{number}", 4, "GPU-0")
            stage.put_bound(f"b-{number}", 4, "GPU-1")
        stage.preempts = False
        stage.start()

        def appears(pod):
            stage.store.put_budget("new", StoredBudget(pod.metadata.name[0], 0))

        stage.store.evicts = appears
        stage.put("high", 8, priority=100)
        stage.go(15)
        assert len(stage.evicted) <= 3
        assert "high" in stage.bound() or claimed(stage) == 0
        left = {name[0] for name in stage.bound() if name != "high"}
        assert left  # one of the budgets holds


@pytest.mark.parametrize("code", [429, 500, 403])
def test_a_victim_that_the_api_server_refuses_is_spared(code):
    with staged() as stage:
        fill(stage)
        stage.store.failing["a"] = code
        stage.start()
        stage.put("high", 10, priority=100)
        stage.go(GRACE_SECONDS + 4)
        assert stage.evicted == ["b"]
        assert "high" in stage.bound()


def test_nothing_stays_claimed_if_no_eviction_is_possible():
    with staged() as stage:
        fill(stage)
        stage.store.failing |= {"a": 500, "b": 500}
        stage.start()
        stage.put("high", 10, priority=100)
        stage.go(20)
        assert stage.evicted == []
        assert claimed(stage) == 0


def test_after_refused_evictions_another_plan_finishes_what_was_begun():
    """The next plans fail too: none of them makes a later one leave what is free by then."""
    with staged({"n": (4, 4, 4)}) as stage:
        names = [f"{gpu}-{number}" for gpu in "abc" for number in range(4)]
        for name in names:
            stage.put_bound(name, 1, f"GPU-{'abc'.index(name[0])}")
        stage.preempts = False
        stage.start()

        def fail(_):
            stage.store.failing = dict.fromkeys(names, 500)

        stage.store.evicts = fail
        stage.put("high", 4, priority=100)
        stage.go(20)
        assert len(stage.evicted) == 1
        stage.store.failing, stage.store.evicts = {}, lambda _: None
        stage.go(2 * FIRST_WAIT_SECONDS)
        assert "high" in stage.bound()
        assert len(stage.evicted) == 4


def test_a_victim_that_outlives_its_grace_period_ends_the_claim():
    with staged() as stage:
        stage.put_bound("a", 10, "GPU-0")
        stage.put_bound("b", 10, "GPU-1", priority=100)
        stage.stuck.add("a")
        before = in_vain()
        stage.start()
        stage.put("high", 10, priority=100)
        stage.go(10)
        assert stage.evicted == ["a"]
        assert claimed(stage) == 1
        stage.go(LATE_SECONDS)
        assert claimed(stage) == 0
        assert in_vain() == before + 1
        # The next plan that needs victims waits.
        stage.put_bound("c", 10, "GPU-0", at="n")
        stage.store.put(stage.store.nodes["n"])
        stage.go(FIRST_WAIT_SECONDS / 2)
        assert stage.evicted == ["a"]


def test_eviction_stops_when_the_preemptor_is_deleted():
    with staged({"n": (16,)}) as stage:
        fill_in_units(stage)
        stage.start()
        stage.put("high", 16, priority=100)
        stage.store.evicts = lambda _: stage.delete("high")
        stage.go(10)
        assert len(stage.evicted) <= 2
        assert claimed(stage) == 0


def test_a_pod_that_gets_room_elsewhere_evicts_nobody_more():
    with staged({"n": (16,)}) as stage:
        fill_in_units(stage)
        stage.start()

        def add(_):
            stage.store.put(node("new", 16))
            stage.store.evicts = lambda _: None

        stage.store.evicts = add
        stage.put("high", 16, priority=100)
        stage.go(10)
        assert stage.bound()["high"] == "new"
        assert len(stage.evicted) < 16
        assert claimed(stage) == 0


def test_victims_of_both_leaders_are_those_of_one_plan():
    for kill_after in (1, 3, 7, 12):
        with staged({"n": (16, 16), "m": (16,)}) as stage:
            for number in range(16):
                stage.put_bound(f"v-{number:02}", 1, priority=1)
                stage.put_bound(f"w-{number:02}", 1, "GPU-1", priority=1)
                stage.put_bound(f"x-{number:02}", 1, at="m", priority=2)
            stage.preempts = False
            stage.start()
            stage.put("high", 16, priority=100)
            stage.go_until_evicted(kill_after)
            stage.run(stage.fail_over())
            stage.run(stage.fail_over())
            stage.go(GRACE_SECONDS + 6)
            assert "high" in stage.bound()
            assert len(stage.evicted) == 16
            assert len({name[0] for name in stage.evicted}) == 1


def test_a_new_leader_keeps_freed_room_before_it_answers():
    with staged({"n": (16,)}) as stage:
        fill_in_units(stage, priority=1)
        stage.start()
        stage.put("high", 16, priority=100)
        stage.go_until_evicted(8)
        stage.put("low", 4, priority=50)
        stage.run(stage.fail_over())
        stage.go(GRACE_SECONDS + 6)
        assert "high" in stage.bound()
        assert "low" not in stage.bound()


def test_a_preemptor_that_kube_scheduler_rejects_does_not_keep_the_room():
    with staged() as stage:
        fill(stage)
        before = in_vain()
        stage.start()
        stage.put("high", 10, priority=100, gated=True)
        stage.store.evicts = lambda _: stage.rejected.add("high")
        stage.go(50)
        assert len(stage.evicted) == 1
        assert claimed(stage) == 0
        assert in_vain() == before + 1
        stage.put("low", 10, priority=0)
        stage.go(10)
        assert "low" in stage.bound()
        stage.go(FIRST_WAIT_SECONDS / 4)
        assert len(stage.evicted) == 1


def test_a_pod_that_never_ends_does_not_end_claims_on_other_gpus():
    with staged() as stage:
        stage.put_bound("stuck", 6, "GPU-1")
        fill(stage)
        stage.stuck |= {"stuck", "a"}
        stage.preempts = False
        stage.start()
        stage.delete("stuck")
        stage.go(LATE_SECONDS + 3)
        stage.put("high", 10, priority=100)
        stage.go_until_evicted(1)
        for _ in range(10):
            stage.go(0.3)
            assert claimed(stage) == 1 or "high" in stage.bound()


def test_without_the_right_to_patch_pods_plans_end_and_nothing_stays_claimed():
    with staged() as stage:
        fill(stage)
        stage.stuck |= {"a", "b"}
        stage.start()
        stage.put("high", 10, priority=100)
        stage.go_until_evicted(1)
        stage.store.may_patch = False
        stage.go(70)
        assert claimed(stage) == 0
        assert len(stage.evicted) == 1


def test_a_victim_list_that_cannot_be_written_costs_one_attempt_a_minute():
    with staged() as stage:
        fill(stage)
        stage.start()
        stage.store.unwritable.add("high")
        stage.put("high", 10, priority=100)
        stage.go(50)
        assert stage.evicted == []
        assert claimed(stage) == 0
        assert stage.store.refused == 1


def test_no_pod_is_evicted_after_its_preemptor_is_gone():
    with staged() as stage:
        fill(stage)
        stage.start()
        stage.store.broken |= {"a", "b"}
        stage.put("high", 10, priority=100)
        stage.go(1.0)
        stage.delete("high")
        stage.store.broken.clear()
        stage.go(10)
        assert stage.evicted == []
        assert claimed(stage) == 0


def test_a_leader_that_stops_evicts_nobody_more():
    with staged({"n": (16,)}) as stage:
        fill_in_units(stage)
        stage.start()
        stage.put("high", 16, priority=100)
        stage.go_until_evicted(3)
        stage.leader_stops()
        stage.go(GRACE_SECONDS + 3)
        assert len(stage.evicted) <= 4


def test_budgets_that_cannot_be_read_spare_only_their_own_namespace():
    with staged() as stage:
        stage.put_bound("a", 10, "GPU-0", namespace="other")
        stage.put_bound("b", 10, "GPU-1", priority=5)
        stage.store.put_budget("one", StoredBudget("a", 5, "other"))
        stage.store.unlisted.add("other")
        stage.start()
        stage.put("high", 10, priority=100)
        stage.go(GRACE_SECONDS + 3)
        assert stage.evicted == ["b"]


def test_a_gang_of_which_a_member_was_evicted_goes_as_a_whole():
    with staged({"n": (16,) * 4}) as stage:
        for number in range(4):
            stage.put_bound(f"g-{number}", 16, f"GPU-{number}", gang="g", minimum=4)
        stage.preempts = False
        stage.start()
        stage.put("high", 16, priority=100)
        stage.store.evicts = lambda _: "high" in stage.store.pods and stage.delete("high")
        stage.go(GRACE_SECONDS + 3)
        assert sorted(stage.evicted) == ["g-0", "g-1", "g-2", "g-3"]


def test_a_victim_that_may_take_a_year_to_end_keeps_nobody_waiting():
    with staged() as stage:
        fill(stage)
        stage.store.put(changed(stage.store.pods["a"], spec=YEAR))
        stage.start()
        stage.put("high", 10, priority=100)
        stage.go(GRACE_SECONDS + 3)
        assert stage.evicted == ["b"]
        assert "high" in stage.bound()


def test_victims_that_hang_are_replaced_by_others():
    with staged() as stage:
        fill(stage)
        for name in "ab":
            stage.store.put(changed(stage.store.pods[name], spec=YEAR))
        stage.store.evicts = lambda pod: (
            stage.stuck.add(pod.metadata.name) if (len(stage.evicted) == 1) else None
        )
        stage.start()
        stage.put("high", 10, priority=100)
        stage.go(MOST_GRACE_SECONDS + LATE_SECONDS - 10)
        assert len(stage.evicted) == 1
        stage.go(30)
        assert sorted(stage.evicted) == ["a", "b"]
        assert "high" in stage.bound()


def test_a_pod_that_its_owner_deletes_with_a_year_of_grace_keeps_nobody_waiting():
    with staged() as stage:
        fill(stage)
        stage.store.put(changed(stage.store.pods["a"], spec=YEAR))
        stage.stuck.add("a")
        stage.delete("a")
        stage.start()
        stage.put("high", 10, priority=100)
        stage.go(MOST_GRACE_SECONDS + LATE_SECONDS + 60)
        assert stage.evicted == ["b"]
        assert "high" in stage.bound()
