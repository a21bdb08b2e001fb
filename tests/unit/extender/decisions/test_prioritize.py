"""Where kube-scheduler puts a pod, by its own points and by what prioritize says."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.decisions.prioritize import deciding, in_order, weighing
from extender.settings.configuration import Policy
from extender.watch.cluster import ClusterWatch
from gpushare.objects.model import Taint
from gpushare.objects.scheduling import (
    Affinity,
    NodeAffinity,
    PodAffinity,
    Present,
    SpreadConstraint,
    Toleration,
)
from tests.builders import node, pod, run_to_end
from tests.fakes.clock import FakeClock
from tests.unit.extender.decisions.test_filter import NAMES, VERDICTS, known
from tests.unit.extender.scripted import bound, changed

SHIPPED, OLDER = 1, 150  # weights in kube-scheduler's configuration
AFFINITY = PAIRS = SPREAD = 200  # weight 2, 100 at most: default_plugins.go
TAINTS = 300
EVERYTHING = 1400
PREFERS = (Present(),)
PREFERENCES = {
    "node": ({"affinity": Affinity(node_affinity=NodeAffinity(preferred=PREFERS))}, AFFINITY),
    "pods": ({"affinity": Affinity(pod_affinity=PodAffinity(preferred=PREFERS))}, PAIRS),
    "against": ({"affinity": Affinity(pod_anti_affinity=PodAffinity(preferred=PREFERS))}, PAIRS),
    "spread": ({"topology_spread_constraints": (SpreadConstraint("ScheduleAnyway"),)}, SPREAD),
}
MINDFUL = PREFERENCES["node"][0]


class Scheduled:
    """Equal nodes a to e of a card of 16; ``begun`` (name to units) are in use."""

    def __init__(self, begun, soft=(), **policy):
        self.cluster = ClusterWatch(1, lambda *_: None, FakeClock(), Policy(**policy))
        self.names = list("abcde")
        run_to_end(self.cluster.replacing_nodes([node(name, 16) for name in self.names]))
        taints = (Taint("slow", "PreferNoSchedule"),)
        for name in soft:
            self.cluster.node_changed(changed(node(name, 16), spec={"taints": taints}))
        for name, units in begun.items():
            self.cluster.pod_changed(bound(f"on-{name}", units, node=name))

    def totals(self, asked, own, weight=SHIPPED):
        """The points of each offered node, as prioritizeNodes in schedule_one.go adds them up."""
        offered = self.cluster.scheduling.filter(asked, self.names).fitting
        found = self.cluster.scheduling.prioritize(asked, offered)
        assert sorted(found.order) == sorted(offered)
        pairs = zip(found.order, found.scores, strict=True)
        return {name: own.get(name, 0) + score * weight * 10 for name, score in pairs}

    def choice(self, asked, own, weight=SHIPPED):
        """The node of most points; kube-scheduler would choose among several by chance."""
        totals = self.totals(asked, own, weight)
        most = [name for name, total in totals.items() if total == max(totals.values())]
        assert len(most) == 1, totals
        return most[0]


def wants(name="p", units=4, **fields):
    return changed(pod(name, units), spec=fields)


@pytest.mark.parametrize("weight", [SHIPPED, OLDER])
@pytest.mark.parametrize("candidates", [1, 4])
def test_our_order_decides_for_a_pod_without_preferences(candidates, weight):
    made = Scheduled({"c": 4}, candidates=candidates)
    own = dict.fromkeys("abde", EVERYTHING)
    assert made.choice(wants(), own, weight) == "c"


@pytest.mark.parametrize(("fields", "points"), PREFERENCES.values(), ids=PREFERENCES)
def test_a_preference_of_the_pod_is_worth_more_than_a_node_that_is_packed_better(fields, points):
    made = Scheduled({"c": 12})
    assert made.choice(wants(**fields), {"b": points}) == "b"


def test_a_node_that_should_rather_be_avoided_is_however_well_it_is_packed():
    made = Scheduled({"c": 12, "d": 2}, soft="c")
    own = dict.fromkeys("abde", TAINTS)
    assert made.choice(wants(), own) == "d"


@pytest.mark.parametrize(
    ("soft", "tolerations"), [("c", (Toleration("slow", "Exists"),)), ("abcde", None)]
)
def test_packing_decides_where_no_node_is_to_be_avoided_more_than_another(soft, tolerations):
    made = Scheduled({"c": 12}, soft=soft)
    own = dict.fromkeys("abde", 300)  # for their free CPU and memory, and an image
    assert made.choice(wants(tolerations=tolerations), own) == "c"


def test_among_nodes_that_it_prefers_alike_a_pod_goes_where_it_packs_best():
    made = Scheduled({"b": 12, "d": 2})
    own = {"c": AFFINITY + 5, "d": AFFINITY, "e": AFFINITY + 5}  # the empty ones a bit more free
    assert made.choice(wants(**MINDFUL), own) == "d"


def test_a_card_that_is_begun_a_little_is_taken_before_an_empty_one():
    made = Scheduled({"d": 1})
    own = dict.fromkeys("abce", 5)
    assert made.choice(wants(units=1, **MINDFUL), own) == "d"


def test_among_equal_nodes_the_weaker_preference_chooses_too():
    """As of a spread over many pods, one more or less of which is a few points."""
    made = Scheduled({})
    assert made.choice(wants(**MINDFUL), {"e": 20}) == "e"


def test_all_of_kube_schedulers_scores_count_where_the_configuration_offers_all():
    assert Scheduled({"c": 12}, candidates=0).choice(wants(), {"b": 200}) == "b"
    assert Scheduled({"c": 12}, candidates=0).choice(wants(), {"b": 20}) == "c"


def test_a_preference_that_fails_every_time_gives_way_so_that_each_node_has_its_turn():
    made = Scheduled({"c": 12})
    own = {"b": 500}
    chosen = [made.choice(wants(**MINDFUL), own) for _ in range(8)]
    assert chosen[:3] == ["b"] * 3
    assert set(chosen[3:]) == set("abcde")


def test_a_kube_scheduler_with_the_older_weight_packs_as_before():
    made = Scheduled({"c": 12})
    assert made.choice(wants(**MINDFUL), {"b": EVERYTHING}, OLDER) == "c"


@given(st.integers(0, 6000))
def test_neighbours_in_an_order_that_decides_are_further_apart_than_all_else_together(count):
    scores = list(deciding(count))
    assert len(scores) == count
    assert all(above - below > EVERYTHING / 10 for above, below in pairwise(scores))
    assert all(0 <= score * OLDER * 10 < 2**63 for score in scores)


@given(VERDICTS, st.lists(st.sampled_from([*NAMES, "stranger"]), unique=True))
def test_weighed_scores_follow_the_order_and_the_best_stands_alone(pairs, asked):
    verdicts = known([(n, (v[0], -v[1], v[2]) if isinstance(v, tuple) else v) for n, v in pairs])
    last = dict.fromkeys(NAMES[:2], 1)
    order = in_order(asked, verdicts, last)
    scores = weighing(order, verdicts, last)
    each = [weighing([name], verdicts, last)[0] - 1 for name in order]  # as if it were the best
    assert scores == [score + (not place) for place, score in enumerate(each)]
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= score <= 11 for score in scores)
    assert scores[:1] not in [[score] for score in scores[1:]]
