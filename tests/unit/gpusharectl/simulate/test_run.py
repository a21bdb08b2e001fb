"""The simulator decides as the extender does, and its cards are never given away twice."""

from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.settings.configuration import Policy
from extender.watch.cluster import ClusterWatch as Extender
from gpushare.cards.placement_policy import CardPolicy, NodePolicy
from gpushare.objects.model import Container, Resources
from gpushare.placement.rank import Policies
from gpusharectl.manifests.yaml_lines import Document, read
from gpusharectl.simulate import view
from gpusharectl.simulate.run import Run
from gpusharectl.simulate.scenario import build
from gpusharectl.simulate.simulated_cluster import SimulatedCluster
from tests.builders import node, pod, run_to_end
from tests.fakes.clock import FakeClock
from tests.unit.extender.decisions.test_scarcity import asking, bound, using, with_cpu

BINPACK = Policies()
POLICIES = st.builds(
    Policies,
    st.sampled_from([NodePolicy.BINPACK, NodePolicy.SPREAD]),
    st.sampled_from(list(CardPolicy)),
)


def node_text(name, cards, *, at=0, more=""):
    return f"kind: Node\nmetadata: {{name: {name}}}\ngpus: {cards}\nat: {at}\n{more}"


def pod_text(name, units, *, at=0, delete=None, count=1, more=""):
    gone = f"\ndelete: {delete}" if delete is not None else ""
    return (
        f'kind: Pod\nmetadata: {{name: {name}, labels: {{aliyun.com/gpu-count: "{count}"}}}}\n'
        f"spec:\n  containers: [{{name: main, resources: {{limits: "
        f"{{aliyun.com/gpu-mem: {units}}}}}}}]\n  {more}\nat: {at}{gone}\n"
    )


def run(*texts, policies=BINPACK):
    documents = read("f.yaml", "---\n".join(texts).encode())
    return list(Run(build(documents), policies).steps())


def where(step):
    """Pod to node and indexes of its cards."""
    found = {}
    for each in step.nodes:
        for card in each.cards:
            for share in card.pods:
                found.setdefault(share.name, (each.name, []))[1].append(card.index)
    return found


def waiting(step):
    return [pod.name for group in step.waiting for pod in group.pods]


@st.composite
def scenarios(draw):
    """Documents of a few nodes, and of pods that come and go."""
    names = [f"n{number}" for number in range(draw(st.integers(1, 3)))]
    texts = []
    for name in names:
        sizes = draw(st.lists(st.integers(1, 16), min_size=1, max_size=3))
        cards = ", ".join(f"1 x {size}" for size in sizes)
        cpu = draw(st.sampled_from(["", "status: {allocatable: {cpu: 4}}\n"]))
        texts.append(node_text(name, f"[{cards}]", at=draw(st.integers(0, 1)), more=cpu))
    for number in range(draw(st.integers(0, 12))):
        at = draw(st.integers(0, 4))
        count = draw(st.integers(1, 2))
        selector = f"nodeSelector: {{kubernetes.io/hostname: {names[0]}}}"
        wishes = ["", f"priority: {number}", selector, "overhead: {cpu: 2}"]
        more = draw(st.sampled_from(wishes))
        units = draw(st.integers(1, 10)) * count
        delete = draw(st.none() | st.integers(at + 1, 6))
        texts.append(pod_text(f"p{number}", units, at=at, delete=delete, count=count, more=more))
    return texts


@given(scenarios(), POLICIES)
def test_no_card_is_over_its_size_and_every_pod_is_in_one_place(texts, policies):
    for step in run(*texts, policies=policies):
        for each in step.nodes:
            for card in each.cards:
                assert sum(share.units for share in card.pods) == card.used <= card.units
                assert card.free == card.units - card.used
        placed = where(step)
        assert not set(placed) & set(waiting(step))
        for name, (_, cards) in placed.items():
            assert len(cards) == len(set(cards)), name


@given(scenarios(), POLICIES)
def test_what_a_pod_held_is_free_when_it_is_gone(texts, policies):
    gone = [
        text if "kind: Node" in text or "\ndelete" in text else f"{text}delete: 9\n"
        for text in texts
    ]
    last = run(*gone, policies=policies)[-1]
    assert (last.used, last.waiting) == (0, ())


@given(scenarios(), POLICIES)
def test_the_same_files_always_give_the_same_steps(texts, policies):
    assert run(*texts, policies=policies) == run(*texts, policies=policies)


@given(scenarios(), POLICIES)
def test_json_says_all_that_a_step_has(texts, policies):
    for step in run(*texts, policies=policies):
        assert msgspec.json.decode(msgspec.json.encode(step), type=view.Step) == step


@given(scenarios(), POLICIES)
def test_a_pod_waits_only_where_no_node_has_it_and_says_why(texts, policies):
    made = Run(build(read("f.yaml", "---\n".join(texts).encode())), policies)
    events = {event.pod.metadata.name: event.pod for event in made.scenario.pods}
    for step in made.steps():
        for group in step.waiting:
            assert group.says or "" not in group.reasons
            assert sum(group.reasons.values()) == len(group.nodes) + group.nodes_left_out
        for name in waiting(step):
            assert made.cluster.place(events[name]) is None


@given(
    st.lists(st.lists(st.integers(1, 16), min_size=1, max_size=3), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(1, 12), st.integers(1, 2), st.integers(0, 30)), max_size=20),
    POLICIES,
)
def test_nodes_and_cards_are_those_that_the_extender_would_choose(stocks, steps, policies):
    ours = SimulatedCluster(1, policies)
    policy = Policy(node=policies.node.value, card=policies.card.value)
    theirs = Extender(1, lambda *_: None, FakeClock(), policy)
    names = [f"n{number}" for number in range(len(stocks))]
    for name, sizes in zip(names, stocks, strict=True):
        made = node(name, *sizes)
        ours.put_node(made)
        theirs.node_changed(made)
    bound = {}
    for number, (units, count, victim) in enumerate(steps):
        if victim in bound:
            gone = bound.pop(victim)
            ours.remove(gone)
            theirs.pod_deleted(gone)
        asks = pod(f"p{number}", units * count, labels={"aliyun.com/gpu-count": str(count)})
        ours.count(asks)
        ours.learn()
        theirs.pod_changed(asks)
        run_to_end(theirs.scheduling.renewing_scarcity())
        offered = theirs.scheduling.filter(asks, names)
        placed = ours.place(asks)
        assert (placed.node if placed else "") == offered.best
        if placed is None:
            continue
        chosen = theirs.scheduling.place(asks, placed.node, theirs.state.request_of(asks))
        assert tuple(card.index for card in chosen.cards) == ours.cards_of(placed)
        theirs.pod_changed(placed)
        bound[number] = placed
    for name in names:
        assert ours.ledger.account(name) == theirs.ledger.account(name)


def test_as_many_pods_without_gpu_memory_are_expected_as_the_extender_expects():
    ours, theirs = SimulatedCluster(1, BINPACK), Extender(1, lambda *_: None, FakeClock())
    for name in "ab":
        ours.put_node(with_cpu(name, "64"))
        theirs.node_changed(with_cpu(name, "64"))
    levels = []
    for number in range(4):
        ours.count(asking(f"p{number}", "8"))
        theirs.pod_changed(asking(f"p{number}", "8"))
        if number == 2:
            ours.bind(bound("first", "b", "8"))
            theirs.pod_changed(bound("first", "b", "8"))
        resources = Resources({}, {"cpu": "4"})
        other = pod(f"other{number}", containers=[Container("main", resources)], node="a")
        ours.bind(other)
        theirs.use_changed(using(other.uid, "a", 4000))
        ours.learn()
        run_to_end(theirs.scheduling.renewing_scarcity())
        assert ours.scarcity.level == theirs.state.scarcity.level
        levels.append(ours.scarcity.level)
    assert levels[0] == 1.0 > levels[-1]


def test_who_waits_is_tried_by_priority_and_then_by_age():
    texts = [
        node_text("n", "1 x 8"),
        pod_text("holds", 8, delete=10),
        pod_text("old", 8, at=1, delete=40),
        pod_text("young", 8, at=2, delete=30),
        pod_text("high", 8, at=3, delete=20, more="priority: 5"),
    ]
    order = [each.name for step in run(*texts) for each in step.happened if each.what == "placed"]
    assert order == ["holds", "high", "old"]
    texts[2] = pod_text("old", 8, at=1, delete=15)  # gives up
    steps = run(*texts)
    happened = [each for step in steps for each in step.happened]
    assert [each.name for each in happened if each.what == "placed"] == ["holds", "high", "young"]
    [gone] = [each for each in happened if each.what == "gave-up"]
    assert (gone.name, gone.waited) == ("old", 14)


def test_a_small_pod_passes_a_large_one_that_has_no_room():
    pods = [pod_text("a", 4), pod_text("large", 8), pod_text("small", 4)]
    last = run(node_text("n", "1 x 8"), *pods)[-1]
    assert (waiting(last), where(last)) == (["large"], {"a": ("n", [0]), "small": ("n", [0])})


def test_cpu_taints_and_cordons_are_counted_from_the_start():
    def reason(more, pod_more=""):
        [step] = run(node_text("n", "1 x 8", more=more), pod_text("a", 4, more=pod_more))
        return list(step.waiting[0].reasons) if step.waiting else []

    cpu = "status: {allocatable: {cpu: 1}}\n"
    assert reason(cpu) == []
    assert reason(cpu, "overhead: {cpu: 2}") == ["node has too little allocatable left of cpu"]
    assert reason("", "overhead: {cpu: 2}") == []  # a node that does not say how much it has
    offers = "status: {allocatable: {other.com/x: 1}}\n"
    assert reason(offers, "overhead: {other.com/x: 2}") == [
        "node has too little allocatable left of other.com/x"
    ]
    assert reason("spec: {unschedulable: true}\n") == ["node is unschedulable"]
    taint = "spec: {taints: [{key: k, effect: NoSchedule}]}\n"
    assert reason(taint) == ["taint k:NoSchedule is not tolerated"]
    assert reason(taint, "tolerations: [{operator: Exists}]") == []


def test_pods_that_ask_for_no_share_take_their_cpu_where_they_are_bound():
    other = (
        "kind: Pod\nmetadata: {name: other}\nspec:\n  nodeName: n\n"
        "  containers: [{name: main, resources: {requests: {cpu: 3}}}]\ndelete: 5\n"
    )
    cpu = "status: {allocatable: {cpu: 4}}\n"
    steps = run(
        node_text("n", "1 x 8", more=cpu), other, pod_text("a", 4, more="overhead: {cpu: 2}")
    )
    assert [waiting(step) for step in steps] == [["a"], []]


def test_a_new_node_and_a_lifted_cordon_let_waiting_pods_run():
    steps = run(
        node_text("n", "1 x 8", more="spec: {unschedulable: true}\n"),
        node_text("n", "1 x 8", at=5),
        node_text("m", "1 x 16", at=10),
        pod_text("a", 8, at=1),
        pod_text("b", 16, at=1),
    )
    assert [waiting(step) for step in steps] == [[], ["a", "b"], ["b"], []]
    changes = [each.text for step in steps for each in step.happened if each.what == "node"]
    assert changes == ["changes", "is added"]


@pytest.mark.parametrize(
    ("asks", "says"),
    [
        (pod_text("a", "8Gi"), "it is a number of units, not of bytes"),
        (pod_text("a", 3, count=2), "cannot be split in 2 equal parts"),
        (pod_text("a", 3, more="schedulingGates: [{name: g}]"), "until this gate is removed: g"),
    ],
)
def test_what_could_run_nowhere_says_so_and_waits_for_ever(asks, says):
    steps = run(node_text("n", "2 x 8"), asks, node_text("m", "2 x 8", at=5))
    for step in steps:
        assert says in step.waiting[0].says
    assert steps[0].happened[0].what == "refused"


def test_a_bound_pod_without_a_decision_is_shown_and_taken_from_no_card():
    [step] = run(node_text("n", "2 x 8"), pod_text("odd", 3, more="nodeName: n"))
    [found] = step.nodes
    assert [card.free for card in found.cards] == [8, 8]
    assert found.unplaced[0].name == "odd"
    assert "no decision on the pod" in found.unplaced[0].why
    [happened] = step.happened
    assert (happened.what, happened.cards) == ("bound", ())


def test_pods_that_wait_for_the_same_are_told_of_together():
    texts = [node_text("n", "1 x 8"), *(pod_text(f"p{number}", 8) for number in range(4))]
    [step] = run(*texts)
    [group] = step.waiting
    assert [pod.name for pod in group.pods] == ["p1", "p2", "p3"]
    assert (group.units, group.cards, sum(len(each.pods) for each in step.waiting)) == (8, 1, 3)


def test_steps_are_the_times_at_which_anything_happens():
    steps = run(
        node_text("n", "1 x 8"), pod_text("a", 1, at=60, delete=90), pod_text("b", 1, at=60)
    )
    assert [(step.number, step.at) for step in steps] == [(1, 0), (2, 60), (3, 90)]
    counts = [Counter(each.what for each in step.happened) for step in steps]
    assert counts == [{}, {"placed": 2}, {"deleted": 1}]


def test_a_document_knows_where_its_parts_are():
    [found] = read("f", b"kind: Pod\nmetadata:\n  name: x\n")
    assert isinstance(found, Document)
    assert str(found.wrong(("metadata", "name"), "t")) == "f:3: metadata.name: t"
    assert str(found.wrong(("metadata", "labels", "a"), "t")) == "f:2: metadata.labels.a: t"


def test_a_resource_that_no_node_offers_is_no_obstacle_and_is_named():
    licensed = pod_text("p", 8).replace("gpu-mem: 8}", "gpu-mem: 8, example.com/license: 1}")
    texts = (node_text("n", "1 x 16"), licensed)
    made = Run(build(read("f.yaml", "---\n".join(texts).encode())), BINPACK)
    assert made.head.left_out[-1] == "resources that no node offers (1 pod)"
    (step,) = made.steps()
    assert where(step) == {"p": ("n", [0])}
