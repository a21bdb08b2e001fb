"""What pods and PodGroups show about gangs, and what a member is told."""

import pytest

from gpushare.answers.explain import explain
from gpushare.answers.gangs import GangView, Phase, list_gangs
from gpushare.answers.group_states import GroupStates
from gpushare.answers.pending.facts import SLOT
from gpushare.answers.pending.sentences import Sentences
from gpushare.answers.pending.why import why_pending
from gpushare.contract import (
    GATE_ADMISSION,
    LABEL_CARD_COUNT,
    LABEL_GANG,
    LABEL_GANG_MINIMUM,
    LABEL_JOB_ROLE,
    LABEL_POD_GROUP,
    LABEL_WORKER_INDEX,
)
from gpushare.groups.index import Groups
from gpushare.ledger.holds import Hold, Slot
from gpushare.objects.model import OwnerReference, Pod
from gpushare.objects.scheduling import SchedulingGate
from gpushare.process.time_slices import run_all
from gpusharectl.reach.listed_cluster import ListedCluster
from tests.builders import annotated, node, pod
from tests.unit.gpushare.answers.cases import GIB, replaced

NOW = 1_000_000_000.0


def member(name: str, units: int | None = 20 * GIB, minimum: int = 4, **more) -> Pod:
    labels = {LABEL_GANG: "train", LABEL_GANG_MINIMUM: str(minimum), **more.pop("labels", {})}
    gates = tuple(SchedulingGate(gate) for gate in more.pop("gates", ()))
    meta = {"namespace": more.pop("namespace", "ml")}
    if more.pop("is_deleted", False):
        meta["deletion_timestamp"] = "2026-01-01T00:00:00Z"
    made = annotated(pod(name, units, labels=labels, **more), {}, **meta)
    return replaced(made, "spec", scheduling_gates=gates or None)


def owned(kind: str, *pods: Pod) -> list[Pod]:
    owner = OwnerReference(True, kind, "set", "uid-set")
    return [replaced(each, "metadata", owner_references=(owner,)) for each in pods]


def cluster_of(*pods: Pod, nodes=None) -> ListedCluster:
    cluster = ListedCluster(nodes or [node("n", 40 * GIB, 40 * GIB)], pods)
    groups = Groups()
    for each in pods:
        groups.update(each)
    cluster.gangs = GroupStates(groups, cluster.request_of, 1, lambda: NOW)
    return cluster


def the_gang(*pods: Pod) -> GangView:
    [found] = cluster_of(*pods).gangs.views()
    return found


def test_a_gang_shows_its_members_bound_or_gated_and_what_the_others_request() -> None:
    found = the_gang(
        member("a", node="n"),
        member("b", gates=[GATE_ADMISSION]),
        member("c", 40 * GIB, labels={LABEL_CARD_COUNT: "2"}),
        member("server", None),
    )
    assert (found.namespace, found.name, found.source) == ("ml", "train", "labels")
    assert (found.members, found.minimum, found.bound, found.gated) == (4, 4, 1, 1)
    assert found.phase == Phase.WAITING_FOR_ROOM
    assert "1 x 2 GPUs with 20 GiB on each, 1 x 20 GiB and 1 pod without GPU memory" in found.text


WORKER = {LABEL_JOB_ROLE: "worker"}
LEADER = {LABEL_WORKER_INDEX: "0"}


@pytest.mark.parametrize(
    ("pods", "says"),
    [
        (owned("StatefulSet", member("a")), "podManagementPolicy: Parallel"),
        (owned("StatefulSet", member("a", node="n"), member("b")), "podManagementPolicy: Parallel"),
        (owned("StatefulSet", member("a", labels=LEADER)), "startupPolicy: LeaderCreated"),
        (owned("MPIJob", member("a", labels=WORKER)), "launcherCreationPolicy: AtStartup"),
        (owned("StatefulSet", member("a"), member("b")), ""),  # creates them at once
        (owned("MPIJob", member("a", labels={LABEL_JOB_ROLE: "launcher"})), ""),
        (owned("Job", member("a")), ""),
        ([member("a")], ""),
    ],
)
def test_a_controller_that_may_wait_for_ready_pods_is_named_with_the_remedy(pods, says) -> None:
    text = the_gang(*pods).text
    assert says in text
    assert ("Likely cause" in text) == bool(says)


@pytest.mark.parametrize(
    ("pods", "phase"),
    [
        ([member("a"), member("b")], Phase.WAITING_FOR_MEMBERS),
        ([member("a", minimum=2), member("b", minimum=2)], Phase.WAITING_FOR_ROOM),
        ([member("a", minimum=1, node="n"), member("b", minimum=1)], Phase.PLACED),
        ([member("a", minimum=0)], Phase.INVALID),
        ([member("a", node="n", is_deleted=True), member("b", is_deleted=True)], Phase.PLACED),
        ([member("a", node="n", is_deleted=True), member("b")], Phase.WAITING_FOR_MEMBERS),
    ],
)
def test_the_phase_follows_from_the_pods(pods, phase) -> None:
    assert the_gang(*pods).phase == phase


@pytest.mark.parametrize("minimum", [0, -1, 5000])
def test_a_minimum_that_cannot_be_read_is_shown_as_none(minimum) -> None:
    assert the_gang(member("a", minimum=minimum), member("b", minimum=minimum)).minimum == 0


def test_a_gang_that_is_being_deleted_is_not_said_to_wait_for_members() -> None:
    pods = [member(name, node="n", is_deleted=True) for name in "abcd"]
    assert the_gang(*pods).text == "Placed: its 4 pods are being deleted."


def test_a_gang_whose_members_are_held_back_by_others_says_by_whom() -> None:
    found = the_gang(member("a"), member("b", gates=["kueue.x-k8s.io/admission", GATE_ADMISSION]))
    assert found.members == 1
    assert "1 pod counts once the scheduling gates of others are removed: kueue" in found.text


def test_a_gang_of_which_others_hold_back_all_members_still_has_its_minimum_and_age() -> None:
    found = the_gang(
        annotated(member("a", gates=["later"]), {}, creation_timestamp="2001-09-09T01:46:00Z")
    )
    assert (found.members, found.minimum, found.age_seconds) == (0, 4, 40.0)
    assert found.text.startswith("Waiting for 4 of 4 members. 1 pod counts once")


def test_gangs_that_wait_are_listed_before_placed_ones_if_there_are_too_many() -> None:
    placed = [member(f"p{n}", minimum=1, node="n", namespace=f"a{n}") for n in range(3)]
    waiting = [member(f"w{n}", namespace=f"b{n}") for n in range(2)]
    gangs = cluster_of(*placed, *waiting).gangs
    found = run_all(list_gangs(gangs, most=3))
    assert [each.namespace for each in found.gangs] == ["a0", "b0", "b1"]
    assert found.left_out == 2
    own = run_all(list_gangs(gangs, "b1", most=3))
    assert ([each.namespace for each in own.gangs], own.left_out) == (["b1"], 0)


def test_figures_count_gangs_by_phase_and_the_members_that_wait() -> None:
    found = cluster_of(
        member("a"),
        member("b", minimum=1, namespace="x", node="n"),
        member("c", minimum=1, namespace="x"),
    ).gangs.figures()
    assert found.phases == dict.fromkeys(Phase, 0) | {"WaitingForMembers": 1, "Placed": 1}
    assert found.waiting_members == 1


def said(cluster: ListedCluster, asking: Pod) -> str:
    found = run_all(explain(cluster, asking, None, now=0.0)).says
    assert run_all(Sentences(cluster).of(asking)) == found
    return found


def test_a_member_that_fits_by_itself_waits_for_its_gang() -> None:
    asking = member("a", gates=[GATE_ADMISSION])
    assert said(cluster_of(asking), asking) == (
        "it is a member of gang train. Waiting for 3 of 4 members; 1 exists. If no more pods are "
        "to come, lower the label pod-group.scheduling.sigs.k8s.io/min-available of all its pods."
    )


def test_a_member_that_fits_nowhere_is_told_so_after_the_sentence_of_its_gang() -> None:
    asking = member("a", 90 * GIB, minimum=1)
    assert said(cluster_of(asking), asking) == (
        "it is a member of gang train. Waiting for a plan for 1 x 90 GiB. This pod: requests 90 "
        "GiB on one GPU, larger than any GPU (the largest has 40 GiB). It fits if it requests 40 "
        "GiB or less (`aliyun.com/gpu-mem: 40960`)."
    )


def test_a_surplus_member_of_a_placed_gang_is_told_about_itself() -> None:
    bound, asking = member("a", minimum=1, node="n"), member("b", minimum=1)
    assert "This pod: its GPU memory fits now (n, GPU 0)" in said(cluster_of(bound, asking), asking)


def test_a_member_with_a_place_is_not_told_that_others_have_it() -> None:
    asking = member("a", 40 * GIB, minimum=1)
    cluster = cluster_of(asking, nodes=[node("n", 40 * GIB)])
    slot = Slot("n", ("GPU-0",), 40 * GIB, asking.uid)
    cluster.ledger.keep(Hold("ml/labels/train", (slot,), 30.0))
    assert run_all(why_pending(cluster, asking)).cause == SLOT
    assert said(cluster, asking).endswith(
        "This pod: GPU 0 of n is reserved for it, but kube-scheduler has not placed it there yet."
    )
    held = replaced(asking, "spec", scheduling_gates=(SchedulingGate(GATE_ADMISSION),))
    assert "and gpushare removes its scheduling gate now." in said(cluster, held)


def test_a_single_pod_with_our_gate_is_judged_as_if_it_had_none() -> None:
    gates = (SchedulingGate(GATE_ADMISSION),)
    fits, large = (
        replaced(pod(name, units), "spec", scheduling_gates=gates)
        for name, units in (("fits", GIB), ("large", 90 * GIB))
    )
    cluster = cluster_of(fits, large)
    assert said(cluster, fits) == (
        "its GPU memory fits now (n, GPU 0), and gpushare removes its scheduling gate soon."
    )
    assert said(cluster, large).startswith("requests 90 GiB on one GPU, larger than any GPU")


def test_a_gate_of_others_is_named_without_our_own() -> None:
    asking = replaced(
        pod("a"),
        "spec",
        scheduling_gates=(SchedulingGate(GATE_ADMISSION), SchedulingGate("queue")),
    )
    assert said(cluster_of(asking), asking) == (
        "kube-scheduler ignores it until its scheduling gates are removed: queue."
    )


def test_explain_has_the_gang_of_a_bound_member_too() -> None:
    bound, missing = member("a", minimum=2, node="n"), member("b", minimum=2)
    found = run_all(explain(cluster_of(bound, missing), bound, None, now=0.0))
    assert found.gang is not None
    assert (found.gang.bound, found.gang.minimum) == (1, 2)
    assert run_all(explain(cluster_of(pod("x")), pod("x"), None, now=0.0)).gang is None


def test_a_gang_of_a_pod_group_that_does_not_exist_is_invalid() -> None:
    asking = annotated(pod("a", labels={LABEL_POD_GROUP: "train"}), {}, namespace="ml")
    assert "PodGroup" in said(cluster_of(asking), asking)


def test_many_gangs_of_one_namespace_hide_no_gang_of_another() -> None:
    many = [member(f"w{n}", labels={LABEL_GANG: f"g{n}"}, namespace="a") for n in range(9)]
    gangs = cluster_of(*many, member("p", minimum=1, node="n", namespace="b")).gangs
    found = run_all(list_gangs(gangs, most=3))
    assert [each.namespace for each in found.gangs] == ["a", "a", "b"]
    assert found.left_out == 7
