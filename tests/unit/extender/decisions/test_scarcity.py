"""filter knows what pods use besides GPU memory, and learns what is scarce."""

import pytest
from msgspec.structs import replace

from extender.watch.cluster import ClusterWatch
from extender.watch.live_pods import PodUse
from gpushare.annotations import inventory
from gpushare.annotations.pod_annotations import decision_annotations
from gpushare.cards.model import ContainerRequest, Inventory, Request
from gpushare.contract import ANNOTATION_CARD_MODELS, ANNOTATION_INVENTORY, RESOURCE_MEMORY
from gpushare.objects.model import Container, ObjectMeta, Resources
from tests.builders import annotated, cards, node, pod, run_to_end
from tests.fakes.clock import FakeClock


def cluster(*nodes):
    made = ClusterWatch(1, lambda *_: None, FakeClock())
    for each in nodes:
        made.node_changed(each)
    return made


def with_cpu(name, cpu):
    found = node(name, 16, 16)
    amounts = {**found.allocatable, "cpu": cpu, "memory": "64Gi"}
    return replace(found, status=replace(found.status, allocatable=amounts))


def of_model(name, model):
    found = tuple(replace_model(card, model) for card in cards(16))
    encoded = inventory.encode(Inventory(1, found, plugin="0.1.0", binding="late"))
    return annotated(node(name, 16), {ANNOTATION_INVENTORY: encoded})


def replace_model(card, model):
    return type(card)(card.index, card.uuid, card.units, minor=card.minor, model=model)


def asking(name, cpu):
    resources = Resources({RESOURCE_MEMORY: 16, "cpu": cpu}, {"cpu": cpu})
    return pod(name, containers=[Container("main", resources)])


def best(made, asked):
    """Return the node that filter offers; the pod leaves nothing behind."""
    made.pod_changed(asked)
    found = made.scheduling.filter(asked, sorted(made.state.nodes)).best
    made.pod_deleted(asked)
    return found


def using(uid, on, cpu):
    return PodUse(ObjectMeta(uid=uid), on, (("cpu", cpu),), is_terminal=False, is_other=True)


def test_a_pod_goes_where_pods_without_gpu_memory_have_left_cpu():
    made = cluster(with_cpu("a", "16"), with_cpu("b", "24"))
    for number in range(20):
        best(made, asking(f"p{number}", "8"))
    run_to_end(made.scheduling.renewing_scarcity())
    assert best(made, asking("usual", "8")) == "a"
    assert best(made, asking("large", "10")) == "b"  # on a, the other GPU would lack CPU
    other = using("other", "b", 8000)
    made.use_changed(other)
    assert best(made, asking("later", "10")) == "a"
    made.pod_deleted(other)
    assert best(made, asking("after", "10")) == "b"


def test_a_pod_of_any_model_leaves_the_one_that_others_must_have():
    made = cluster(of_model("a", "A"), of_model("b", "B"))
    assert best(made, pod("before", 16)) == "a"
    for number in range(20):
        made.pod_changed(pod(f"p{number}", 16, annotations={ANNOTATION_CARD_MODELS: "A"}))
    run_to_end(made.scheduling.renewing_scarcity())
    assert best(made, pod("after", 16)) == "b"


def test_nothing_is_looked_at_again_while_nothing_changes():
    made = cluster(with_cpu("a", "16"))
    run_to_end(made.scheduling.renewing_scarcity())
    assert not list(made.scheduling.renewing_scarcity())


def test_an_amount_of_cpu_that_cannot_be_read_neither_rejects_the_node_nor_prefers_it():
    made = cluster(with_cpu("a", "sixteen"), with_cpu("b", "16"))
    assert best(made, asking("first", "1")) == "a"
    run_to_end(made.scheduling.renewing_scarcity())
    assert best(made, asking("p", "1")) == "b"
    made.node_deleted(with_cpu("b", "16"))
    assert best(made, asking("q", "1")) == "a"


def bound(name, on, cpu):
    """Return a pod that uses the first GPU of a node."""
    asked, request = asking(name, cpu), Request((ContainerRequest("main", 16),))
    decision = decision_annotations(request, cards(16), is_legacy=False, assume_time_ns=1)
    return replace(annotated(asked, decision), spec=replace(asked.spec, node_name=on))


def test_pods_use_gpus_first_that_pods_without_gpu_memory_would_leave_without_cpu():
    made = cluster(with_cpu("a", "64"), with_cpu("b", "64"))
    for number in range(8):
        best(made, asking(f"p{number}", "30"))
    run_to_end(made.scheduling.renewing_scarcity())
    made.pod_changed(bound("first", "b", "30"))
    run_to_end(made.scheduling.renewing_scarcity())
    assert best(made, asking("alone", "30")) == "b"  # a stays free as a whole
    made.use_changed(using("other", "a", 12_000))
    run_to_end(made.scheduling.renewing_scarcity())
    assert best(made, asking("beside", "30")) == "a"  # others will leave CPU for one GPU there
    made.pod_deleted(using("other", "a", 12_000))
    run_to_end(made.scheduling.renewing_scarcity())
    assert best(made, asking("after", "30")) == "b"


def look(made):
    """Learn from the nodes, at which there is something to look."""
    made.use_changed(using("small", "b", 1))
    made.pod_deleted(using("small", "b", 1))
    run_to_end(made.learning())


def test_pods_that_are_listed_at_the_start_do_not_come_then():
    made = cluster(with_cpu("a", "64"), with_cpu("b", "64"))
    for number in range(8):
        best(made, asking(f"p{number}", "30"))
    look(made)
    look(made)
    run_to_end(made.replacing_pods([bound("first", "b", "30"), using("other", "a", 12_000)]))
    for _ in range(3):
        look(made)
        assert best(made, asking("beside", "30")) == "b"


@pytest.mark.parametrize("is_cordoned", [True, False])
def test_pods_of_a_node_that_is_drained_do_not_come_elsewhere(is_cordoned):
    made = cluster(*(with_cpu(name, "64") for name in "abc"))
    for number in range(8):
        best(made, asking(f"p{number}", "30"))
    run_to_end(made.replacing_pods([using("other", "c", 12_000), bound("first", "b", "30")]))
    look(made)
    look(made)
    gone = with_cpu("c", "64")
    if is_cordoned:
        made.node_changed(replace(gone, spec=replace(gone.spec, unschedulable=True)))
    else:
        made.node_deleted(gone)
    look(made)
    made.pod_deleted(using("other", "c", 12_000))
    made.use_changed(using("again", "a", 12_000))
    look(made)
    assert best(made, asking("beside", "30")) == "b"
