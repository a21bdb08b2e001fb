"""Policies and cordoned cards in the verbs that ask and veto: the same decisions again."""

from extender.decisions.preemption.proposals import Veto
from gpushare.answers.explain import explain
from gpushare.contract import ANNOTATION_CORDONED_CARDS
from gpushare.placement import reasons
from gpushare.placement.trial import look
from tests.builders import node, pod
from tests.unit.extender.scripted import Bench, bound, changed
from tests.unit.extender.test_what_if import large, run


def cordoned(made, text):
    return changed(made, {"annotations": {**made.annotations, ANNOTATION_CORDONED_CARDS: text}})


def test_a_pod_that_wishes_to_be_spread_is_foretold_so():
    bench = Bench()
    for name in ("n1", "n2"):
        bench.cluster.node_changed(large(name, 16, 16))
    policy = {
        "gpushare.aliyun.com/node-policy": "spread",
        "gpushare.aliyun.com/card-policy": "spread",
    }
    found = run(look(bench.cluster.state, pod("new", 4, annotations=policy), 4))
    assert len({(place.node, place.cards) for place in found.places}) == 4
    packed = run(look(bench.cluster.state, pod("new", 4), 4))
    assert len({(place.node, place.cards) for place in packed.places}) == 1


def test_nobody_dies_for_a_cordoned_card_and_explain_says_that_it_is():
    bench = Bench()
    bench.cluster.node_changed(cordoned(node("n", 16), "GPU-0"))
    bench.add(bound("low", 16))
    high = pod("high", 16)
    found = bench.cluster.scheduling.proposals.judge(high, {"n": ["uid-low"]})
    assert found.vetoed == {"n": (Veto.NO_ROOM, reasons.CORDONED.text)}
    bench.add(high)
    [shown] = run(explain(bench.cluster.state, high, None, now=0.0)).nodes
    assert shown.cards[0].why == reasons.CORDONED.text


def test_a_node_whose_cordons_cannot_be_read_takes_nobody_whoever_dies():
    bench = Bench()
    bench.cluster.node_changed(cordoned(large("n", 16), "no card"))
    high = pod("high", 16)
    found = bench.cluster.scheduling.proposals.judge(high, {"n": ["uid-low"]})
    assert found.vetoed == {"n": (Veto.NO_ROOM, reasons.UNREADABLE_CORDON.text)}
    outlook = run(look(bench.cluster.state, high, 1))
    assert outlook.reasons == {reasons.UNREADABLE_CORDON.text: 1}
