"""what-if --policy: where each policy would place pods now, and what it would leave."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gpushare.answers import what_if
from gpushare.contract import ANNOTATION_CARDS, ANNOTATION_NODE_POLICY
from gpushare.placement.rank import Policies
from gpushare.process.time_slices import run_all
from gpusharectl.policies.option import WITHOUT_SETTINGS
from gpusharectl.reach.listed_cluster import ListedCluster
from gpusharectl.what_if.policies import compare, draw
from tests.builders import node, pod

EXTRAS = msgspec.convert({"pod": {}}, what_if.Extras)


def on(name, units, where, card):
    return pod(name, units, node=where, annotations={ANNOTATION_CARDS: f"GPU-{card}"})


@st.composite
def clusters(draw):
    sizes = st.lists(st.integers(1, 16), min_size=1, max_size=3)
    nodes = [node(name, *draw(sizes)) for name in "abc"]
    held = st.tuples(st.integers(1, 8), st.sampled_from("abc"), st.integers(0, 2))
    places = draw(st.lists(held, max_size=6))
    return nodes, [on(f"p{n}", units, *place) for n, (units, *place) in enumerate(places)]


@given(clusters(), st.integers(1, 10), st.integers(1, 6), st.integers(1, 2))
def test_a_column_is_the_answer_of_what_if_with_this_policy(cluster, units, count, cards):
    labels = {"aliyun.com/gpu-count": str(cards)}
    question = what_if.Question(pod("asks", units * cards, labels=labels), count)
    found = compare(ListedCluster(*cluster), question, EXTRAS, WITHOUT_SETTINGS)
    before = ListedCluster(*cluster)
    used = sum(c.card.units - c.free for n in "abc" for c in before.ledger.account(n).cards)
    for policy, column in zip(WITHOUT_SETTINGS, found.policies, strict=True):
        world = ListedCluster(*cluster)
        world.policies = Policies(policy)
        answer = run_all(what_if.answer(world, question, EXTRAS))
        assert (column.policy, column.fitting) == (policy.value, answer.fitting)
        assert column.places == answer.places
        assert column.left.used == used + column.fitting * units * cards
    assert len({each.fitting for each in found.policies}) == 1
    assert found.fits == all(each.fitting == count for each in found.policies)


@given(clusters(), st.integers(1, 10), st.integers(1, 6), st.sampled_from(WITHOUT_SETTINGS))
def test_a_policy_does_not_differ_from_itself(cluster, units, count, policy):
    question = what_if.Question(pod("asks", units), count)
    one, other = compare(ListedCluster(*cluster), question, EXTRAS, [policy] * 2).policies
    assert one == other


def test_the_table_says_what_is_left_for_the_pods_of_the_cluster():
    nodes = [node("a", 16, unit_mib=1024), node("b", 16, unit_mib=1024)]
    pods = [on("whisper-0", 4, "a", 0), pod("llama-0", 16)]
    question = what_if.Question(pod("asks", 4), 1)
    found = compare(ListedCluster(nodes, pods), question, EXTRAS, WITHOUT_SETTINGS[:2])
    assert [line.plain for line in draw(found)][:12] == [
        "                                             binpack      spread",
        "pods that fit                                 1 of 1      1 of 1",
        "GPU memory used                                25.0%       25.0%",
        "GPUs entirely free                                 1           0",
        "free, but too little for any pod               0 GiB       0 GiB",
        "GPUs with free memory, but too little for",
        "  llama (16 GiB)                           1 (8 GiB)  2 (24 GiB)",
        "  whisper (4 GiB)                                  0           0",
        "binpack leaves 1 GPU with too little free memory for llama (16 GiB), spread 2.",
        "places with binpack:",
        "  a, GPU 0: 1",
        "places with spread:",
    ]


def test_a_pod_that_requests_a_policy_is_placed_by_it_in_every_column():
    nodes = [node("a", 16), node("b", 16)]
    asks = pod("asks", 4, annotations={ANNOTATION_NODE_POLICY: "spread"})
    cluster = ListedCluster(nodes, [on("p", 4, "a", 0)])
    found = compare(cluster, what_if.Question(asks), EXTRAS, WITHOUT_SETTINGS)
    assert {place.node for each in found.policies for place in each.places} == {"b"}
    told = [line.plain for line in draw(found)]
    assert "the pod requests node policy spread itself, which counts" in told
