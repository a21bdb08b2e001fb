"""In a simulation a gang starts as a whole or not at all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.placement.rank import Policies
from gpusharectl.manifests.yaml_lines import read
from gpusharectl.simulate.replay.steps import Replay
from gpusharectl.simulate.run import Run
from gpusharectl.simulate.scenario import build
from gpusharectl.simulate.view import lines
from tests.unit.gpusharectl.simulate.test_replay import received
from tests.unit.gpusharectl.simulate.test_run import node_text, pod_text, run, waiting, where

GROUP = "scheduling.x-k8s.io/v1alpha1"
ZONE = "topology.kubernetes.io/zone"


def member(name, gang, minimum, units=10, *, at=0, delete=None, zone="", more=""):
    """A member by labels; without ``units`` it requests no GPU memory."""
    prefix = "pod-group.scheduling.sigs.k8s.io"
    labels = f'{{{prefix}/name: {gang}, {prefix}/min-available: "{minimum}"}}'
    amounts = f"{{limits: {{aliyun.com/gpu-mem: {units}}}}}" if units else "{}"
    annotations = f"gpushare.aliyun.com/gang-zone: {zone}" if zone else ""
    gone = f"\ndelete: {delete}" if delete is not None else ""
    return (
        f"kind: Pod\nmetadata: {{name: {name}, labels: {labels}, annotations: {{{annotations}}}}}\n"
        f"spec:\n  containers: [{{name: main, resources: {amounts}}}]\n  {more}\nat: {at}{gone}\n"
    )


def in_group(name, group, units=10, at=0):
    label = f"scheduling.x-k8s.io/pod-group: {group}"
    return pod_text(name, units, at=at).replace("labels: {", f"labels: {{{label}, ")


def last(*texts):
    return run(*texts)[-1]


def phases(step):
    return {gang.name: gang.phase for gang in step.gangs}


def test_of_two_gangs_with_interleaved_pods_one_starts_and_the_other_takes_nothing():
    texts = [member(f"{gang}-{n}", gang, 3) for n in range(3) for gang in ("a", "b")]
    step = last(node_text("n1", "4 x 16"), *texts)
    assert sorted(where(step)) == ["a-0", "a-1", "a-2"]
    assert waiting(step) == ["b-0", "b-1", "b-2"]
    assert phases(step) == {"a": "Placed", "b": "WaitingForRoom"}
    [group] = step.waiting
    assert group.sentence.startswith(
        "it is a member of gang b. No room for 3 x 10 GiB together: 1 fits now."
    )


def workload(kind, replicas, minimum, policy=""):
    prefix = "pod-group.scheduling.sigs.k8s.io"
    labels = f'{{{prefix}/name: a, {prefix}/min-available: "{minimum}"}}'
    number = "parallelism" if kind == "Job" else "replicas"
    return (
        f"kind: {kind}\nmetadata: {{name: set}}\nspec:\n  {number}: {replicas}\n{policy}"
        f"  template:\n    metadata: {{labels: {labels}}}\n    spec:\n      containers: "
        "[{name: main, resources: {limits: {aliyun.com/gpu-mem: 10}}}]\n"
    )


def test_a_set_whose_next_pod_waits_for_the_last_one_never_completes_its_gang():
    step = last(node_text("n1", "4 x 16"), workload("StatefulSet", 4, 4))
    assert (where(step), waiting(step)) == ({}, ["set-0"])
    assert "Create it again with podManagementPolicy: Parallel." in step.waiting[0].sentence
    step = last(node_text("n1", "4 x 16"), workload("StatefulSet", 4, 4), member("b", "a", 4))
    assert (where(step), waiting(step)) == ({}, ["set-0", "b"])


@pytest.mark.parametrize(
    "texts",
    [
        [workload("StatefulSet", 4, 4, "  podManagementPolicy: Parallel\n")],
        [workload("StatefulSet", 4, 1)],
        [workload("StatefulSet", 3, 2), member("b", "a", 2)],
        [workload("Job", 4, 4)],
    ],
)
def test_a_gang_starts_whose_minimum_exists_before_a_pod_is_ready(texts):
    step = last(node_text("n1", "4 x 16"), *texts)
    assert (len(where(step)), waiting(step)) == (4, [])


def train_job(labels, replicas=2):
    template = (
        f"{{metadata: {{labels: {labels}}}, spec: {{containers: [{{name: pytorch, resources: "
        "{limits: {aliyun.com/gpu-mem: 10}}}]}}"
    )
    return (
        "kind: PyTorchJob\nmetadata: {name: ddp}\nspec: {pytorchReplicaSpecs: "
        f"{{Worker: {{replicas: {replicas}, template: {template}}}}}}}\n"
    )


@pytest.mark.parametrize(
    ("labels", "replicas", "is_told"),
    [
        ("{}", 2, True),
        ("{}", 1, False),
        ("{pod-group.scheduling.sigs.k8s.io/name: ddp}", 2, False),
    ],
)
def test_a_training_job_without_the_labels_of_a_gang_is_named(labels, replicas, is_told):
    documents = read(
        "f.yaml", f"{node_text('n1', '4 x 16')}---\n{train_job(labels, replicas)}".encode()
    )
    notes = "".join(build(documents).unknown.lines())
    assert ("PyTorchJob ddp: its pods are not a gang" in notes) == is_told


def test_a_gang_whose_members_cannot_run_is_told_in_one_line():
    texts = [member(f"a-{n}", "a", 3, units="10Gi") for n in range(3)]
    [line] = lines(last(node_text("n1", "4 x 16"), *texts))
    assert line.startswith("! Gang a (3 pods) cannot run: pod a-0: container main requests ")


def test_a_gang_waits_for_its_last_member_and_then_starts_at_once():
    texts = [member(f"a-{n}", "a", 3, at=10 * n) for n in range(3)]
    first, second, third = run(node_text("n1", "4 x 16"), *texts)
    assert (where(first), where(second)) == ({}, {})
    assert phases(second) == {"a": "WaitingForMembers"}
    assert sorted(where(third)) == ["a-0", "a-1", "a-2"]


def test_a_gang_that_waits_holds_nobody_up():
    texts = [member(f"a-{n}", "a", 3) for n in range(3)]
    step = last(node_text("n1", "2 x 16"), *texts, pod_text("single", 16, at=5))
    assert sorted(where(step)) == ["single"]
    [group] = step.waiting
    assert "1 fits now" in group.sentence


def test_all_members_are_in_one_zone():
    nodes = [
        node_text(f"n{n}", "1 x 16").replace("}", f", labels: {{{ZONE}: {zone}}}}}", 1)
        for n, zone in enumerate("aabbb")
    ]
    texts = [member(f"a-{n}", "a", 3, zone=ZONE) for n in range(3)]
    step = last(*nodes, *texts)
    assert {node for node, _ in where(step).values()} == {"n2", "n3", "n4"}
    assert step.gangs[0].zone == "b"
    step = last(*nodes, *texts, *[member(f"b-{n}", "b", 3, zone=ZONE, at=5) for n in range(3)])
    assert "No zone has room for 3 x 10 GiB: zone a has room for 2." in step.gangs[1].text


def test_an_elastic_gang_starts_with_its_minimum_and_grows_when_there_is_room():
    texts = [member(f"a-{n}", "a", 2) for n in range(4)]
    single = pod_text("single", 16, delete=60)
    first, second = run(node_text("n1", "4 x 16"), single.replace("at: 0", "at: 0"), *texts)
    assert phases(first) == {"a": "Placed"}
    assert len(where(first)) == 4
    assert "Placed: 3 of 4, at least 2." in first.gangs[0].text
    assert len(where(second)) == 4
    assert "single" not in where(second)


def test_a_pod_group_states_the_minimum_and_a_missing_one_is_a_problem():
    group = f"kind: PodGroup\napiVersion: {GROUP}\nmetadata: {{name: g}}\nspec: {{minMember: 2}}\n"
    pods = [in_group("a-0", "g"), in_group("a-1", "g", at=5)]
    first, second = run(node_text("n1", "2 x 16"), group, *pods)
    assert (phases(first), sorted(where(second))) == ({"g": "WaitingForMembers"}, ["a-0", "a-1"])
    step = last(node_text("n1", "2 x 16"), *pods)
    assert phases(step) == {"g": "Invalid"}
    assert "create the PodGroup" in step.waiting[0].sentence


def test_members_without_gpu_memory_start_with_the_others():
    texts = [member("worker", "a", 2, delete=9), member("server", "a", 2, units=0)]
    step = run(node_text("n1", "1 x 16"), *texts)[0]
    assert {each.name: each.node for each in step.happened} == {"worker": "n1", "server": "n1"}
    step = last(node_text("n1", "1 x 8"), *texts)
    assert waiting(step) == ["server"]
    assert step.waiting[0].units == 0


def test_groups_of_pods_that_need_no_gpu_are_ignored():
    texts = [member(f"cpu-{n}", "a", 2, units=0) for n in range(2)]
    simulated = Run(
        build(read("f.yaml", "---\n".join([node_text("n", "1 x 16"), *texts]).encode())), Policies()
    )
    [step] = simulated.steps()
    assert (step.gangs, step.waiting) == ((), ())
    assert any("cpu-0" in text for text in simulated.head.ignored)


def test_a_gate_of_gpushare_is_removed_and_one_of_others_is_waited_for():
    ours = "schedulingGates: [{name: gpushare.aliyun.com/admission}]"
    others = "schedulingGates: [{name: kueue.x-k8s.io/admission}]"
    step = last(
        node_text("n1", "4 x 16"),
        *[member(f"a-{n}", "a", 2, more=ours) for n in range(2)],
        *[member(f"b-{n}", "b", 2, more=others) for n in range(2)],
    )
    assert sorted(where(step)) == ["a-0", "a-1"]
    assert phases(step) == {"a": "Placed", "b": "WaitingForMembers"}


def test_a_gang_whose_members_end_is_placed_until_the_last_one_is_gone():
    texts = [member(f"a-{n}", "a", 2, delete=10 * n + 10) for n in range(2)]
    _, second, third = run(node_text("n1", "2 x 16"), *texts)
    assert phases(second) == {"a": "Placed"}
    assert "1 of 2 are left" in second.gangs[0].text
    assert third.gangs == ()


def test_the_live_page_shows_the_gangs_of_a_step():
    texts = [node_text("n1", "1 x 16"), *[member(f"a-{n}", "a", 2, at=10 * n) for n in range(2)]]
    replay = Replay(build(read("f.yaml", "---\n".join(texts).encode())), Policies(), ())
    assert [gang["phase"] for gang in received(replay, 1)["gangs"].values()] == [
        "WaitingForMembers"
    ]
    [gang] = received(replay, 2)["gangs"].values()
    assert (gang["phase"], gang["created"]) == ("WaitingForRoom", "1970-01-01T00:00:00+00:00")


@given(
    st.lists(st.integers(1, 16), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 16), st.integers(0, 3)), max_size=4),
)
def test_no_gang_ever_has_some_of_its_members_placed_and_less_than_its_minimum(sizes, gangs):
    cards = ", ".join(f"1 x {size}" for size in sizes)
    texts = [
        member(f"{number}-{n}", f"g{number}", minimum, units, at=at)
        for number, (minimum, units, at) in enumerate(gangs)
        for n in range(minimum + number % 2)
    ]
    for step in run(node_text("n1", f"[{cards}]"), *texts):
        for gang in step.gangs:
            assert gang.bound == 0 or gang.bound >= gang.minimum
