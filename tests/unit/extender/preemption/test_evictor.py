"""Whom the extender evicts for whom, and that the room goes to the pod for which it was made."""

import pytest

from extender.settings.configuration import PreemptionSettings
from gpushare.contract import ANNOTATION_EVICTING, LABEL_PREEMPTIBLE
from tests.unit.extender.gangs.store import StoredBudget
from tests.unit.extender.preemption.stage import GRACE_SECONDS, Stage, uid_of
from tests.unit.extender.preemption.two_gpus import claimed, fill, in_vain, staged


def test_exactly_one_pod_is_evicted_where_sums_have_room_and_no_gpu_has():
    with staged() as stage:
        fill(stage)
        stage.start()
        stage.put("high", 10, priority=100)
        stage.go(GRACE_SECONDS + 2)
        assert len(stage.evicted) == 1
        assert stage.bound()["high"] == "n"
        assert claimed(stage) == 0
        assert not stage.nominated


def test_nobody_is_evicted_while_preemption_is_off():
    with staged(settings=None) as stage:
        fill(stage)
        stage.start()
        stage.put("high", 10, priority=100)
        stage.go(60)
        assert stage.evicted == []
        assert "high" not in stage.bound()


@pytest.mark.parametrize("priority", [0, 100])
def test_nobody_of_the_same_or_a_higher_priority_is_evicted(priority):
    with staged() as stage:
        fill(stage, priority=100)
        stage.start()
        stage.put("high", 10, priority=priority)
        stage.go(10)
        assert stage.evicted == []
        assert claimed(stage) == 0


def test_a_pod_that_never_preempts_evicts_nobody():
    with staged() as stage:
        fill(stage)
        stage.start()
        stage.put("high", 10, priority=100, never=True)
        stage.go(10)
        assert stage.evicted == []


def test_a_gated_pod_evicts_and_is_released_into_the_room():
    with staged() as stage:
        fill(stage)
        stage.start()
        stage.put("high", 10, priority=100, gated=True)
        stage.go(GRACE_SECONDS + 5)
        assert len(stage.evicted) == 1
        assert stage.bound()["high"] == "n"


@pytest.mark.parametrize("gated", [False, True])
def test_a_gang_evicts_for_all_its_members_or_for_none(gated):
    with staged({"n": (16, 16), "m": (16,)}) as stage:
        fill(stage)
        stage.put_bound("c", 16, "GPU-0", at="m", priority=200)
        stage.start()
        for number in range(3):
            stage.put(f"g-{number}", 16, priority=100, gang="g", minimum=3, gated=gated)
        stage.go(10)
        assert stage.evicted == []
        stage.store.remove(stage.store.pods["g-2"])
        for number in range(2):
            made = f"h-{number}"
            stage.put(made, 16, priority=100, gang="h", minimum=2, gated=gated)
        stage.go(GRACE_SECONDS + 6)
        assert sorted(stage.evicted) == ["a", "b"]
        assert {"h-0", "h-1"} <= stage.bound().keys()
        assert claimed(stage) == 0


def test_a_gang_is_evicted_as_a_whole():
    with staged({"n": (16,), "m": (16,)}) as stage:
        for number, at in enumerate("nm"):
            stage.put_bound(f"g-{number}", 16, at=at, gang="g", minimum=2)
        stage.preempts = False
        stage.start()
        stage.put("high", 16, priority=100)
        stage.go(GRACE_SECONDS + 2)
        assert sorted(stage.evicted) == ["g-0", "g-1"]
        assert "high" in stage.bound()


def test_members_beyond_the_minimum_are_evicted_one_by_one():
    with staged({"n": (16,), "m": (16,)}) as stage:
        for number, at in enumerate("nm"):
            stage.put_bound(f"g-{number}", 16, at=at, gang="g", minimum=1)
        stage.preempts = False
        stage.start()
        stage.put("high", 16, priority=100)
        stage.go(GRACE_SECONDS + 2)
        ended = {"g-0", "g-1"} - stage.bound().keys()
        assert len(ended) == 1
        assert "high" in stage.bound()


def test_only_pods_with_the_label_are_evicted_if_the_settings_say_so():
    settings = PreemptionSettings(enabled=True, victims="preemptible")
    with staged(settings=settings) as stage:
        stage.put_bound("a", 10, "GPU-0")
        stage.put_bound("b", 10, "GPU-1", labels={LABEL_PREEMPTIBLE: "true"})
        stage.start()
        stage.put("high", 10, priority=100)
        stage.go(GRACE_SECONDS + 2)
        assert stage.evicted == ["b"]
    with staged(settings=settings) as stage:
        fill(stage)
        stage.start()
        stage.put("high", 10, priority=100)
        stage.go(10)
        assert stage.evicted == []


def test_a_pod_waits_for_the_delay_before_it_evicts():
    with staged(settings=PreemptionSettings(enabled=True, delay_seconds=30)) as stage:
        fill(stage)
        stage.start()
        stage.put("high", 10, priority=100)
        stage.go(29)
        assert stage.evicted == []
        stage.go(GRACE_SECONDS + 4)
        assert "high" in stage.bound()


def test_no_new_pod_is_evicted_while_victims_end():
    with staged() as stage:
        fill(stage)
        stage.stuck |= {"a", "b"}
        stage.start()
        stage.put("high", 10, priority=100)
        stage.go(5)
        first = list(stage.evicted)
        assert len(first) == 1
        for number in range(5):
            stage.put(f"other-{number}", 16, priority=0)
            stage.go(1)
        assert stage.evicted == first


def test_equal_and_lower_pods_never_get_the_room_and_a_more_important_one_may():
    with staged() as stage:
        fill(stage)
        stage.start()
        stage.put("high", 10, priority=100)
        stage.go_until_evicted(1)
        for number in range(20):
            stage.put(f"equal-{number}", 10, priority=100)
            stage.put(f"low-{number}", 10, priority=1)
            stage.go(0.1)
        stage.go(3)
        bound = stage.bound()
        assert "high" in bound
        assert not [name for name in bound if name.startswith("low")]
        assert stage.ever_bound["high"] == min(
            at for name, at in stage.ever_bound.items() if name not in {"a", "b"}
        )


def test_a_more_important_pod_may_take_the_claimed_room():
    with staged() as stage:
        stage.put_bound("a", 10, "GPU-0")
        stage.put_bound("b", 10, "GPU-1", priority=1000)
        stage.stuck.add("a")
        stage.start()
        stage.put("high", 10, priority=100)
        stage.go(2)
        assert stage.evicted == ["a"]
        stage.preempts = False
        stage.put("higher", 10, priority=200)
        stage.stuck.clear()
        stage.store.remove(stage.store.pods["a"])
        stage.go(2)
        assert "higher" in stage.bound()


def test_the_preemptor_names_its_victims_before_the_first_one_is_evicted():
    with staged() as stage:
        fill(stage)
        stage.start()
        written: list[str] = []
        stage.store.evicts = lambda _: written.append(
            stage.store.pods["high"].annotations.get(ANNOTATION_EVICTING, "")
        )
        stage.put("high", 10, priority=100)
        stage.go(GRACE_SECONDS + 2)
        assert written == [uid_of(stage.evicted[0])[:8]]


def test_events_name_the_other_pod_and_say_why():
    with staged() as stage:
        fill(stage)
        stage.start()
        stage.put("high", 10, priority=100)
        stage.go(GRACE_SECONDS + 2)
        (name,) = stage.evicted
        ((reason, text),) = stage.events(name)
        assert reason == "GpusharePreempted"
        assert "pod default/high of priority 100" in text
        assert "node n" in text
        reasons = [reason for reason, text in stage.events("high") if f"default/{name}" in text]
        assert reasons == ["GpusharePreempting"]


def test_what_is_evicted_is_known_while_it_lasts():
    with staged() as stage:
        fill(stage)
        stage.stuck |= {"a", "b"}
        stage.start()
        stage.put("high", 10, priority=100)
        stage.go(1.5)
        facts = stage.facts("high")
        assert facts.victims == (("default", stage.evicted[0]),)
        assert facts.ended == 0
        assert 0 < facts.seconds_left <= 2
        assert stage.facts("a") is None


def test_at_most_ten_pods_a_second_are_evicted():
    with staged({"n": (30,)}) as stage:
        for number in range(30):
            stage.put_bound(f"v-{number:02}", 1)
        stage.preempts = False
        stage.start()
        at: list[float] = []
        stage.store.evicts = lambda _: at.append(stage.loop.now)
        stage.put("high", 30, priority=100)
        stage.go(GRACE_SECONDS + 6)
        assert len(at) == 30
        assert min(later - first for first, later in zip(at, at[10:], strict=False)) >= 0.99
        assert "high" in stage.bound()


def test_no_pod_is_evicted_by_both_for_one_preemptor():
    with staged({"n": (16, 16)}) as stage:
        for number in range(2):
            stage.put_bound(f"a-{number}", 8, "GPU-0", priority=number)
            stage.put_bound(f"b-{number}", 8, "GPU-1", priority=number)
        stage.start()
        stage.put("high", 16, priority=100)
        stage.go(GRACE_SECONDS + 5)
        assert "high" in stage.bound()
        both = set(stage.evicted), set(stage.nominated.get("high", ()))
        assert not both[0] & both[1]
        assert not (both[0] and both[1])
        assert len(both[0] | both[1]) == 2


def test_what_kube_scheduler_can_do_is_left_to_it():
    with staged({"n": (16,)}) as stage:
        stage.put_bound("a", 16)
        stage.start()
        stage.put("high", 16, priority=100)
        stage.go(GRACE_SECONDS + 3)
        assert stage.nominated == {"high": ["a"]}
        assert stage.evicted == []
        assert "high" in stage.bound()


def test_room_is_given_once_victims_and_others_have_ended():
    with staged({"n": (16,)}) as stage:
        stage.put_bound("ending", 8)
        stage.put_bound("victim", 8)
        stage.stuck.add("ending")
        stage.preempts = False
        before = in_vain()
        stage.start()
        stage.delete("ending")
        stage.put("high", 16, priority=100)
        stage.go(GRACE_SECONDS + 4)
        assert stage.evicted == ["victim"]
        assert claimed(stage) == 1
        stage.store.remove(stage.store.pods["ending"])
        stage.go(2)
        assert "high" in stage.bound()
        assert in_vain() == before


def test_room_is_given_while_victims_of_another_pod_on_the_node_still_end():
    with staged({"n": (16, 16)}) as stage:
        stage.put_bound("slow", 16, "GPU-0")
        stage.put_bound("quick", 16, "GPU-1")
        stage.stuck.add("slow")
        stage.preempts = False
        before = in_vain()
        stage.start()
        for number in range(2):
            stage.put(f"high-{number}", 16, priority=100, gated=True)
        stage.go(GRACE_SECONDS + 4)
        assert sorted(stage.evicted) == ["quick", "slow"]
        assert len([name for name in stage.bound() if name.startswith("high")]) == 1
        assert claimed(stage) == 1
        assert in_vain() == before


def test_an_annotation_of_a_user_does_not_shorten_the_delay():
    with staged(settings=PreemptionSettings(enabled=True, delay_seconds=60)) as stage:
        fill(stage)
        stage.start()
        stage.put("high", 10, priority=100)
        stage.annotate("high", {ANNOTATION_EVICTING: uid_of("a")[:8] + ",00000000"})
        stage.go(50)
        assert stage.evicted == []


def test_many_pods_that_cannot_be_helped_delay_no_other():
    with staged({"n": (16,), "m": (16,)}) as stage:
        stage.put_bound("top", 16, at="m", priority=1000)
        stage.put_bound("a", 10, at="n")
        stage.preempts = False
        stage.start()
        for number in range(40):
            stage.put(f"large-{number:02}", 17 + number, priority=100)
        stage.go(3)
        stage.put("high", 12, priority=100)
        stage.go(GRACE_SECONDS + 8)
        assert "high" in stage.bound()


@pytest.mark.parametrize("gated", [False, True], ids=["ungated", "gated"])
@pytest.mark.parametrize("members", [1, 2])
def test_nobody_is_evicted_for_pods_of_a_scheduler_that_never_asks(gated, members):
    with staged() as stage:
        fill(stage)
        stage.start()
        for number in range(members):
            gang = {"gang": "g", "minimum": members} if members > 1 else {}
            stage.put(f"o-{number}", 16, priority=100, gated=gated, scheduler="other", **gang)
        stage.go(60)
        assert (stage.evicted, claimed(stage)) == ([], 0)
        stage.put("high", 10, priority=50)
        stage.go(GRACE_SECONDS + 5)
        assert "high" in stage.bound()


@pytest.mark.parametrize("gated", [0, 1, 2])
def test_a_gang_evicts_once_kube_scheduler_has_rejected_a_member_that_it_may_try(gated):
    with staged() as stage:
        fill(stage)
        stage.untried |= {"g-0", "g-1"}
        stage.start()
        for number in range(2):
            name = f"g-{number}"
            stage.put(name, 16, priority=100, gang="g", minimum=2, gated=number < gated)
        stage.go(GRACE_SECONDS + 5)
        assert len(stage.evicted) == (2 if gated == 2 else 0)
        stage.untried.clear()
        stage.store.put(stage.store.nodes["n"])
        stage.go(GRACE_SECONDS + 5)
        assert sorted(stage.evicted) == ["a", "b"]
        assert {"g-0", "g-1"} <= stage.bound().keys()


def test_gangs_that_no_victims_help_delay_no_less_important_pod():
    """A budget lets one pod go: each search for a gang of eight is long and finds nothing."""
    nodes = {f"n{number:02}": (16, 16) for number in range(6)}
    with staged({**nodes, "m": (16,)}) as stage:
        stage.preempts = False
        for at in nodes:
            for number in range(8):
                name, card = f"kept-{at}-{number}", f"GPU-{number % 2}"
                stage.put_bound(name, 4, card, at, namespace="kept")
        stage.put_bound("a", 16, at="m")
        stage.store.put_budget("one", StoredBudget("", 1, "kept"))
        stage.start()
        for gang in range(12):
            for number in range(8):
                more = {"gang": f"g{gang}", "minimum": 8, "gated": True, "namespace": "many"}
                stage.put(f"g{gang}-{number}", 16, priority=100, **more)
        stage.put("high", 16, priority=50, gated=True)
        stage.go(GRACE_SECONDS + 10)
        assert stage.evicted == ["a"]
        assert stage.bound()["high"] == "m"


def use_two_gpus(stage: Stage) -> None:
    """Let kube-scheduler, which counts by sums, choose the larger of two pods as a victim."""
    stage.put_bound("a", 10, "GPU-0")
    stage.put_bound("b", 12, "GPU-1")


def test_a_smaller_pod_on_another_gpu_is_evicted_instead_of_a_proposed_one():
    with staged() as stage:
        use_two_gpus(stage)
        stage.start()
        stage.put("high", 12, priority=100)
        stage.go(GRACE_SECONDS + 5)
        assert stage.evicted == ["a"]
        assert not stage.nominated
        assert stage.bound()["high"] == "n"


def test_the_proposed_victim_goes_if_a_budget_protects_the_smaller_one():
    with staged() as stage:
        use_two_gpus(stage)
        stage.store.put_budget("spent", StoredBudget("a", 0))
        stage.start()
        stage.put("high", 12, priority=100)
        stage.go(GRACE_SECONDS + 15)
        assert stage.evicted == ["b"]
        assert stage.bound()["high"] == "n"


@pytest.mark.parametrize("settings", [None, PreemptionSettings(enabled=True, delay_seconds=600)])
def test_kube_scheduler_evicts_its_victim_where_the_extender_evicts_nobody_soon(settings):
    with staged(settings=settings) as stage:
        use_two_gpus(stage)
        stage.start()
        stage.put("high", 12, priority=100)
        stage.go(GRACE_SECONDS + 5)
        assert stage.nominated == {"high": ["b"]}
        assert stage.bound()["high"] == "n"
