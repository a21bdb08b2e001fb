"""What filter, prioritize and bind choose together: the best few, in order, and no pod starved."""

import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from extender.decisions.expectations import EXPECTED_SECONDS
from extender.decisions.scheduling import Placement
from extender.settings.configuration import Policy, ShapePoint
from extender.watch.cluster import ClusterWatch
from gpushare.annotations import pod_annotations
from gpushare.contract import (
    ANNOTATION_CARD_POLICY,
    ANNOTATION_CARDS_NOT,
    ANNOTATION_CARDS_ONLY,
    ANNOTATION_CORDONED_CARDS,
    ANNOTATION_NODE_POLICY,
)
from gpushare.errors import NoRoom
from gpushare.ledger.accounts import Reserve
from gpushare.ledger.holds import Claim, Hold, Slot
from gpushare.objects.model import Taint
from gpushare.objects.scheduling import (
    Affinity,
    PodAffinity,
    Present,
    SpreadConstraint,
    Toleration,
)
from gpushare.placement import reasons
from gpushare.placement.reasons import Reason
from gpushare.placement.verdict_cache import Verdicts
from tests.builders import cards, node, pod, run_to_end
from tests.fakes.clock import FakeClock
from tests.unit.extender.decisions.test_prioritize import PREFERENCES
from tests.unit.extender.scripted import Bench, bound, changed, restocked


class Nodes:
    """A cluster of equal nodes, and pods that are bound to them as a scheduler would."""

    def __init__(self, count, *sizes, **policy):
        self.time = FakeClock()
        self.cluster = ClusterWatch(
            1, lambda *_: None, self.time, Policy(**{"candidates": 8, **policy})
        )
        self.names = [f"n{i:03}" for i in range(count)]
        run_to_end(self.cluster.replacing_nodes([node(name, *sizes) for name in self.names]))

    def filter(self, name, units=4, **more):
        asked = pod(name, units, **more)
        return self.cluster.scheduling.filter(asked, self.names)

    def prioritize(self, name, nodes, units=4):
        return self.cluster.scheduling.prioritize(pod(name, units), nodes).order

    def bound(self, name, units, where, **more):
        """Choose cards as bind does, and let the watch show the pod."""
        asked = pod(name, units, **more)
        found = self.cluster.scheduling.place(asked, where, pod_annotations.request_of(asked))
        assert isinstance(found, Placement), found
        uuids = ",".join(card.uuid for card in found.cards)
        self.cluster.pod_changed(bound(name, units, uuids, where))
        return uuids


def test_the_best_few_nodes_are_offered_and_the_others_are_in_no_part_of_the_answer():
    made = Nodes(50, 16, 16)
    made.bound("a", 12, "n020")
    made.bound("b", 8, "n030")
    found = made.filter("c")
    assert found.fitting == ["n020", "n030", "n000", "n001", "n002", "n003", "n004", "n005"]
    assert (found.failed, found.final) == ({}, {})
    assert found.best == "n020"


def test_as_configured_a_pod_is_offered_the_one_best_node():
    made = Nodes(50, 16, candidates=Policy().candidates)
    made.bound("a", 12, "n020")
    assert made.filter("b").fitting == ["n020"]


def test_all_that_fit_are_offered_where_few_do_and_reasons_are_told():
    made = Nodes(6, 16)
    made.bound("a", 16, "n003")
    found = made.filter("b")
    assert found.fitting == ["n000", "n001", "n002", "n004", "n005"]
    assert (found.failed, found.final) == ({}, {"n003": reasons.NO_ROOM.text})


def test_all_are_offered_where_the_configuration_says_so():
    made = Nodes(50, 16, candidates=0)
    assert made.filter("a").fitting == made.names


def test_names_that_nobody_knows_are_refused_not_offered():
    made = Nodes(3, 16)
    found = made.cluster.scheduling.filter(pod("a", 4), ["n000", "stranger"])
    assert found.fitting == ["n000"]
    assert found.final == {"stranger": reasons.NO_CARDS.text}


def tainted(name, *keys):
    taints = tuple(Taint(key, "PreferNoSchedule") for key in keys)
    return changed(node(name, 16), spec={"taints": taints})


HARD = {
    "required": {"affinity": Affinity(pod_anti_affinity=PodAffinity(required=(Present(),)))},
    "spread": {"topology_spread_constraints": (SpreadConstraint("DoNotSchedule"),)},
}


@pytest.mark.parametrize(("fields", "_"), PREFERENCES.values(), ids=PREFERENCES)
def test_a_pod_with_preferences_among_nodes_is_offered_all(fields, _):
    made = Nodes(50, 16)
    found = made.cluster.scheduling.filter(changed(pod("a", 4), spec=fields), made.names)
    assert found.fitting == made.names


@pytest.mark.parametrize("fields", HARD.values(), ids=HARD)
def test_hard_rules_are_kube_schedulers_filters_and_few_nodes_are_enough(fields):
    made = Nodes(50, 16)
    found = made.cluster.scheduling.filter(changed(pod("a", 4), spec=fields), made.names)
    assert len(found.fitting) == 8


def test_all_are_offered_while_one_of_those_that_fit_should_rather_be_avoided():
    made = Nodes(50, 16)
    made.cluster.node_changed(tainted("n007", "slow"))
    assert made.filter("a").fitting == made.names
    made.bound("b", 16, "n007")
    assert len(made.filter("c").fitting) == 8
    made.cluster.node_changed(node("n007", 16))
    made.cluster.pod_deleted(pod("b"))
    assert len(made.filter("d").fitting) == 8


def test_few_are_enough_where_no_node_should_be_avoided_more_than_another():
    made = Nodes(50, 16)
    for name in made.names:
        made.cluster.node_changed(tainted(name, "slow"))
    assert len(made.filter("a").fitting) == 8
    made.cluster.node_changed(node("n007", 16))
    assert made.filter("b").fitting == made.names
    tolerant = changed(pod("c", 4), spec={"tolerations": (Toleration("slow", "Exists"),)})
    assert len(made.cluster.scheduling.filter(tolerant, made.names).fitting) == 8
    for name in made.names:
        made.cluster.node_deleted(node(name, 16))
    run_to_end(made.cluster.replacing_nodes([node(name, 16) for name in made.names]))
    assert len(made.filter("d").fitting) == 8


def test_a_node_with_more_taints_to_avoid_than_another_makes_a_difference():
    made = Nodes(50, 16)
    for name in made.names:
        made.cluster.node_changed(tainted(name, "slow"))
    made.cluster.node_changed(tainted("n007", "old"))
    assert len(made.filter("as many").fitting) == 8
    made.cluster.node_changed(tainted("n007", "slow", "old"))
    assert made.filter("a").fitting == made.names


def test_a_pod_whose_attempts_fail_is_offered_other_nodes_and_all_in_the_end():
    made = Nodes(60, 16)
    seen = []
    for _ in range(4):
        seen.append(made.filter("stubborn").fitting)
        made.time.now += 10
    assert [len(each) for each in seen] == [8, 8, 32, 60]
    assert not set(seen[0]) & set(seen[1])
    assert not set(seen[2]) & {*seen[0], *seen[1]}


def test_nodes_of_a_failed_attempt_are_offered_again_where_there_are_no_others():
    made = Nodes(2, 16)
    assert made.filter("a").best == "n000"
    found = made.filter("a")
    assert (found.fitting, found.best) == (["n000", "n001"], "n001")
    assert made.prioritize("a", found.fitting) == ["n001", "n000"]


@pytest.mark.parametrize("candidates", [8, 0])
def test_every_node_comes_to_be_best_once_if_attempts_go_on_failing(candidates):
    made = Nodes(20, 16, candidates=candidates)
    best = [made.filter("stubborn").best for _ in range(50)]
    assert set(best[:22]) == set(best[-20:]) == set(made.names)


def test_what_was_just_ranked_best_counts_when_others_are_ranked():
    made = Nodes(3, 16)
    assert [made.filter(f"p{i}", 16).best for i in range(3)] == made.names


def test_where_all_may_be_taken_several_are_offered_all_the_same():
    made = Nodes(20, 16)
    for number in range(20):
        made.filter(f"p{number}", 16)
    assert len(made.filter("last", 16).fitting) == 8


def test_it_is_forgotten_after_two_seconds():
    made = Nodes(2, 16)
    assert made.filter("a", 16).best == "n000"
    made.time.now += EXPECTED_SECONDS
    assert made.filter("b", 16).best == "n000"


def test_a_pod_does_not_stand_in_its_own_way():
    made = Nodes(2, 16)
    made.filter("a", 16)
    assert made.prioritize("a", made.names, 16)[0] == "n000"


def test_of_pods_that_fill_a_cluster_exactly_none_is_ever_refused():
    """Binds come later than the filters of other pods, and out of order."""
    made = Nodes(10, 16, 16)
    sizes = [16, 8, 4, 4] * 10
    best = {}
    waiting = []
    for number, units in enumerate(sizes):
        found = made.filter(f"p{number}", units)
        order = made.prioritize(f"p{number}", found.fitting, units)
        best[number] = order[0]
        waiting.append(number)
        if len(waiting) == 7:
            waiting.reverse()
            while waiting:
                which = waiting.pop(0)
                made.bound(f"p{which}", sizes[which], best[which])
    for which in waiting:
        made.bound(f"p{which}", sizes[which], best[which])
    used = [e.free for n in made.names for e in made.cluster.ledger.account(n).cards]
    assert used == [0] * 20


def test_a_pod_gets_the_cards_that_it_was_expected_on():
    made = Nodes(1, 16, 16)
    made.filter("a", 16)  # expected on GPU-0
    made.filter("b", 4)  # so this one on GPU-1
    assert made.bound("b", 4, "n000") == "GPU-1"
    assert made.bound("a", 16, "n000") == "GPU-0"


def test_a_wish_that_comes_between_filter_and_bind_counts():
    made = Nodes(1, 16, 16)
    made.filter("a", 16)
    wishes = {ANNOTATION_CARDS_NOT: "GPU-0"}
    assert made.bound("a", 16, "n000", annotations=wishes) == "GPU-1"


def test_what_was_expected_is_not_given_where_it_cannot_be_had_any_more():
    for other in ("GPU-0", "GPU-1"):
        made = Nodes(1, 16, 16)
        made.filter("a", 16)  # expected on GPU-0
        made.cluster.pod_changed(bound("b", 4, other, "n000"))
        assert made.bound("a", 16, "n000") == {"GPU-0": "GPU-1", "GPU-1": "GPU-0"}[other]


def test_bind_elsewhere_leaves_room_for_what_is_expected_there():
    made = Nodes(1, 16, 8)
    made.filter("a", 8)  # expected on GPU-1
    assert made.bound("unexpected", 8, "n000") == "GPU-0"
    made = Nodes(1, 8)
    made.filter("a", 8)
    assert made.bound("unexpected", 8, "n000") == "GPU-0"  # never refused for it


def test_policies_come_from_the_configuration_and_from_the_pod():
    made = Nodes(3, 16, 16, node="spread", card="spread")
    made.bound("a", 4, "n000")
    assert made.filter("b").best == "n001"
    assert made.bound("b", 4, "n000") == "GPU-1"
    wishes = {ANNOTATION_NODE_POLICY: "binpack", ANNOTATION_CARD_POLICY: "binpack"}
    assert made.filter("c", annotations=wishes).best == "n000"
    assert made.bound("c", 4, "n000", annotations=wishes) == "GPU-0"


def test_a_shape_comes_from_the_configuration_and_a_pod_can_wish_for_it():
    wishes = {ANNOTATION_NODE_POLICY: "shape"}
    shape = (ShapePoint(0, 0), ShapePoint(50, 10), ShapePoint(100, 0))
    made = Nodes(3, 16, node="shape", shape=shape)
    made.bound("a", 4, "n001")
    made.bound("b", 12, "n002")
    assert made.prioritize("c", made.names) == ["n001", "n000", "n002"]
    assert made.filter("c", annotations={ANNOTATION_NODE_POLICY: "binpack"}).best == "n002"
    assert made.filter("d", annotations=wishes).best == "n001"
    without = Nodes(3, 16).filter("e", annotations=wishes)
    assert "configuration has none: write binpack or spread" in without.final["n000"]


def test_a_wish_for_one_card_is_met_where_it_is():
    made = Nodes(20, 16)
    wanted = replace(cards(16)[0], uuid="GPU-wanted")
    made.cluster.node_changed(restocked(node("n013", 16), cards=(wanted,)))
    found = made.filter("a", annotations={ANNOTATION_CARDS_ONLY: "GPU-wanted"})
    assert found.fitting == ["n013"]
    assert found.final["n000"] == reasons.UNWANTED.text


def test_prioritize_puts_every_node_in_one_order():
    made = Nodes(30, 16, 16)
    made.bound("a", 12, "n009")
    made.bound("full", 16, "n004")
    made.bound("full-too", 16, "n004")
    for names in (made.names, made.names[3:11], ["n004", "n009", "n009", "stranger"]):
        found = made.prioritize("b", names)
        assert found[0] == "n009"
        assert sorted(found) == sorted(set(names))
        assert "n004" in found[-2:]


def test_the_pods_own_reserve_is_no_obstacle_and_others_are():
    made = Nodes(12, 16)
    made.cluster.ledger.reserve(Reserve("uid-a", "default", "a", "n005", ("GPU-0",), 16, 1))
    assert made.filter("a", 16, uid="uid-a").best == "n000"
    found = made.cluster.scheduling.filter(pod("a", 16, uid="uid-a"), ["n005"])
    assert found.fitting == ["n005"]
    assert made.cluster.scheduling.filter(pod("b", 16), ["n005"]).final == {
        "n005": reasons.NO_ROOM.text
    }


CORDONS = st.sampled_from(["", "GPU-0", "GPU-0,GPU-1", "nonsense"])
NAMES = [f"n{i}" for i in range(5)]
REQUESTS = [
    pod_annotations.request_of(asked)
    for asked in (
        pod(units=4),
        pod(units=9),
        pod(units=8, labels={"aliyun.com/gpu-count": "2"}),
        pod(
            units=4,
            annotations={ANNOTATION_NODE_POLICY: "spread", ANNOTATION_CARD_POLICY: "spread"},
        ),
        pod(units=4, annotations={ANNOTATION_CARDS_ONLY: "GPU-1"}),
    )
]


class Remembering(RuleBasedStateMachine):
    """Whatever happens, what the index remembers is what a fresh look would say."""

    def __init__(self):
        super().__init__()
        self.made = Nodes(0)
        self.cluster, self.scheduling = self.made.cluster, self.made.cluster.scheduling
        self.count = 0

    @rule(
        name=st.sampled_from(NAMES),
        sizes=st.lists(st.sampled_from([4, 8, 16]), min_size=1, max_size=3),
        unhealthy=st.lists(st.integers(0, 2), max_size=1),
        cordoned=CORDONS,
        unit=st.sampled_from([1, 1, 1024]),
    )
    def node_comes(self, name, sizes, unhealthy, cordoned, unit):
        made = node(name, *sizes, unhealthy=unhealthy, unit_mib=unit)
        if cordoned:
            made.annotations[ANNOTATION_CORDONED_CARDS] = cordoned
        self.cluster.node_changed(made)

    @rule(name=st.sampled_from(NAMES))
    def node_goes(self, name):
        self.cluster.node_deleted(node(name, 1))

    @rule(name=st.sampled_from(NAMES), units=st.integers(1, 9), card=st.integers(0, 3))
    def pod_is_bound(self, name, units, card):
        self.count += 1
        self.cluster.pod_changed(bound(f"p{self.count}", units, f"GPU-{card}", name))

    @rule(number=st.integers(0, 20))
    def pod_ends(self, number):
        self.cluster.pod_deleted(pod(f"p{number}"))

    @rule(name=st.sampled_from(NAMES), units=st.integers(1, 9), number=st.integers(0, 5))
    def reserve(self, name, units, number):
        uid = f"r{number}"
        self.cluster.ledger.reserve(Reserve(uid, "default", uid, name, ("GPU-0",), units, 1))

    @rule(name=st.sampled_from(NAMES), number=st.integers(0, 5))
    def release(self, name, number):
        self.cluster.ledger.release(f"r{number}", name)

    @rule(units=st.integers(1, 9), number=st.integers(0, 5), seconds=st.sampled_from([0, 0, 1, 3]))
    def filtered(self, units, number, seconds):
        self.made.time.now += seconds
        self.cluster.scheduling.filter(pod(f"f{number}", units), NAMES)

    @rule(which=st.sampled_from(REQUESTS))
    def looked_at(self, which):
        self.remembered(which)

    def remembered(self, which):
        self.cluster.pods.expected.expire("uid-nobody", self.made.time.now)
        return self.scheduling._verdicts(which, pod("nobody"), [])

    @invariant()
    def what_is_remembered_is_what_is_true(self):
        which = REQUESTS[self.count % len(REQUESTS)]
        verdicts = self.remembered(which)
        fresh = Verdicts(0, [(name, self.cluster.state.verdict(name, which)) for name in NAMES])
        assert verdicts.fits == fresh.fits
        assert verdicts.ranks == fresh.ranks
        assert verdicts.rejected == fresh.rejected

    @invariant()
    def what_is_offered_fits_and_what_is_refused_does_not(self):
        """Of those that fit, some are withheld: others are expected there, and one is better."""
        which = REQUESTS[self.count % 2]
        asked = pod("fresh", which.units, uid="")
        found = self.cluster.scheduling.filter(asked, NAMES)
        wanted = {name for name in NAMES if self.cluster.state.why_not(name, which, asked) is None}
        assert set(found.fitting) <= wanted
        assert bool(found.fitting) == bool(wanted)
        if not found.is_short:
            assert set(found.fitting) == wanted
            assert {*found.failed, *found.final} == set(NAMES) - wanted


TestRemembering = Remembering.TestCase
TestRemembering.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_the_number_of_remembered_classes_is_bounded(monkeypatch):
    monkeypatch.setattr("gpushare.placement.verdict_cache.MOST_BYTES", 16_000)
    made = Nodes(10, 64)
    for units in range(1, 40):
        made.filter(f"p{units}", units)
    assert len(made.cluster.scheduling._cache._classes) <= 9


def test_the_bytes_of_remembered_wishes_are_bounded(monkeypatch):
    most = 2 * 2**20
    monkeypatch.setattr("gpushare.placement.verdict_cache.MOST_BYTES", most)
    made = Nodes(1, 64)
    tracemalloc.start()
    for number in range(400):
        wish = ",".join(f"{number:05}-{card:05}-{'x' * 15}" for card in range(256))
        asked = pod("p", 100, annotations={ANNOTATION_CARDS_NOT: wish})
        assert made.cluster.scheduling.filter(asked, ["n000"]).final
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(made.cluster.scheduling._cache._classes) > 8
    assert size < 2 * most


def test_a_verdict_is_a_reason_or_a_rank():
    made = Nodes(1, 16)
    asked = pod_annotations.request_of(pod(units=4))
    assert isinstance(made.cluster.state.verdict("stranger", asked), Reason)
    assert made.cluster.state.verdict("n000", asked)[3] == "n000"


async def test_a_claim_for_what_others_leave_takes_no_room_from_the_owner_of_a_hold():
    bench = Bench(16)
    runs, held, other = pod("runs", 8), pod("held", 8), pod("other", 8)
    bench.add(runs, held, other)
    await bench.bind(runs)
    ledger = bench.cluster.ledger
    ledger.keep(Hold("g", (Slot("n", ("GPU-0",), 8, pod_uid=held.uid),), 1e9))
    ledger.keep(Claim("waits", (Slot("n", ("GPU-0",), 8),), 1e9, 100))
    with pytest.raises(NoRoom):
        await bench.bind(other)
    await bench.bind(held)
    assert [uid for uid, *_ in bench.kube.bindings] == [runs.uid, held.uid]


async def test_a_claim_stands_in_the_way_of_its_own_priority_and_lower_ones_alone():
    bench = Bench(16)
    bench.cluster.ledger.keep(Claim("other", (Slot("n", ("GPU-0",), 16),), 1e9, 100))
    for priority, may in ((0, False), (100, False), (101, True)):
        made = changed(pod(f"p{priority}", 8), spec={"priority": priority})
        bench.add(made)
        found = bench.cluster.scheduling.filter(made, ["n"])
        assert found.fitting == (["n"] if may else [])
        if may:
            await bench.bind(made)
        else:
            with pytest.raises(NoRoom):
                await bench.bind(made)
    assert [uid for uid, *_ in bench.kube.bindings] == ["uid-p101"]
