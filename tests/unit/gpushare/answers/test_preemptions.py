"""What people read about evictions for a Pending pod or its gang."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.answers import gang_text, preemptions
from gpushare.answers.gangs import GangFacts, GangView, Phase, Shape
from gpushare.answers.pending.facts import (
    BINDING,
    ENDING,
    EVICTING,
    SLOT,
    UNREADABLE,
    Pending,
    without_names,
)
from gpushare.answers.pending.sentences import Sentences
from gpushare.answers.pending.text import sentence
from gpushare.answers.pending.why import why_pending
from gpushare.answers.preemptions import PreemptionFacts
from gpushare.contract import GATE_ADMISSION
from gpushare.groups.model import GroupKey, Source
from gpushare.ledger.accounts import Reserve
from gpushare.ledger.holds import Claim, Hold, Slot
from gpushare.objects.model import Pod
from gpushare.objects.scheduling import SchedulingGate
from gpushare.planning import reasons
from gpushare.planning.ask import NoPlan
from gpushare.process.time_slices import run_all
from gpusharectl.reach.listed_cluster import ListedCluster
from tests.builders import annotated, node, pod
from tests.unit.gpushare.answers.cases import asks, replaced

TWO = (("ml", "a"), ("ml", "b"))
MANY = tuple(("ml", f"p{number}") for number in range(8))
BOTH = "evicting 2 pods of lower priority for it (ml/a, ml/b)"
EIGHT = "evicting 8 pods of lower priority for it (ml/p0, ml/p1, ml/p2 and 5 more)"


class Evictions:
    """Implements PreemptionStates: the same facts about every pod of these uids."""

    def __init__(self, facts: PreemptionFacts, *uids: str) -> None:
        self.facts, self.uids, self.count = facts, uids, 1

    def of(self, uid: str) -> PreemptionFacts | None:
        return self.facts if uid in self.uids else None


def cluster_with(facts: PreemptionFacts, *pods: Pod) -> ListedCluster:
    cluster = ListedCluster([node("n", 16)], pods)
    cluster.preemptions = Evictions(facts, *(each.uid for each in pods))
    return cluster


def why(facts: PreemptionFacts, wanted: Pod, gang: GangView | None = None) -> Pending:
    return run_all(why_pending(cluster_with(facts, wanted), wanted, gang=gang))


def gang_view(phase: Phase, facts: PreemptionFacts, **more) -> GangView:
    made = GangFacts(
        key=GroupKey("ml", Source.LABELS, "train"),
        phase=phase,
        minimum=2,
        members=2,
        shapes=(Shape(2, 1, 1024),),
        evicting=facts,
        **more,
    )
    return gang_text.view(made, 0.0)


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        (PreemptionFacts(TWO), "about to evict 2 pods of lower priority for it (ml/a, ml/b)."),
        (PreemptionFacts(TWO, 0, 22.4, begun=True), f"{BOTH}; 23 s of their grace period left."),
        (
            PreemptionFacts(TWO, 1, 5, begun=True),
            f"{BOTH}; 1 of 2 has ended; 5 s of their grace period left.",
        ),
        (
            PreemptionFacts(TWO, 1, -3, begun=True),
            f"{BOTH}; 1 of 2 has ended; their grace period is over.",
        ),
        (PreemptionFacts(TWO, 2, begun=True), f"{BOTH}; all have ended."),
        (
            PreemptionFacts(TWO[:1], 1, 0.0, begun=True),
            "evicting 1 pod of lower priority for it (ml/a); it has ended.",
        ),
        (PreemptionFacts(TWO, 0, begun=True), f"{BOTH}."),
        (PreemptionFacts(MANY, 2, begun=True), f"{EIGHT}; 2 of 8 have ended."),
    ],
    ids=str,
)
def test_the_sentence_says_who_is_evicted_how_many_have_ended_and_how_long_it_takes(facts, says):
    assert sentence(why(facts, asks(32))) == says


def test_evictions_are_said_also_of_a_gated_pod_and_of_one_that_would_fit():
    for wanted in (asks(8), replaced(asks(8), "spec", scheduling_gates=gates(GATE_ADMISSION))):
        assert why(PreemptionFacts(TWO), wanted).cause == EVICTING
    other = replaced(asks(8), "spec", scheduling_gates=gates("kueue.x-k8s.io/admission"))
    assert sentence(why(PreemptionFacts(TWO), other)).startswith("about to evict 2 pods")


def gates(*names: str) -> tuple[SchedulingGate, ...]:
    return tuple(SchedulingGate(name) for name in names)


def test_what_the_pod_waits_for_next_is_said_before_the_evictions():
    facts, wanted = PreemptionFacts(TWO, 2, begun=True), asks(8)
    assert why(facts, asks("1.5")).cause == UNREADABLE
    deleted = annotated(wanted, {}, deletion_timestamp="2026-01-01T00:00:00Z")
    assert why(facts, deleted).cause == ENDING
    slot = Slot("n", ("GPU-0",), 8, wanted.uid)
    cluster = cluster_with(facts, wanted)
    cluster.ledger.keep(Claim("me", (slot,), 1.0, 9))
    assert run_all(why_pending(cluster, wanted)).cause == EVICTING
    cluster.ledger.keep(Hold("me", (slot,), 1.0))
    assert run_all(why_pending(cluster, wanted)).cause == SLOT
    cluster.ledger.reserve(Reserve(wanted.uid, "ml", "train-big", "n", ("GPU-0",), 8, 0))
    assert run_all(why_pending(cluster, wanted)).cause == BINDING


@given(st.lists(st.sampled_from(["ml", "secret"]), min_size=1, max_size=9))
def test_who_may_not_see_a_namespace_reads_no_name_of_it(namespaces):
    victims = tuple((each, f"{each}-{place}") for place, each in enumerate(namespaces))
    found = without_names(why(PreemptionFacts(victims), asks(32)), "ml")
    said = f"{msgspec.json.encode(found).decode()} {sentence(found)}"
    assert "secret" not in said
    assert f"evict {len(victims)} pod" in said
    shown = [name for namespace, name in victims if namespace == "ml"]
    assert all(f"ml/{name}" in said for name in shown[: preemptions.NAMED])


@pytest.mark.parametrize("phase", [Phase.WAITING_FOR_ROOM, Phase.STARTING])
def test_a_gang_says_how_many_and_a_member_whose_names(phase):
    facts = PreemptionFacts((*TWO, ("secret", "c")), 1, 8.0, begun=True)
    no_plan = NoPlan(reasons.NO_ROOM_FOR_GANG)
    gang = gang_view(phase, facts, no_plan=no_plan)
    said = "Evicting 3 pods of lower priority for it; 1 of 3 has ended."
    assert gang.text.endswith(said)
    found = why(facts, asks(32), gang)
    assert sentence(found).endswith(
        f"{said} These are ml/a, ml/b, secret/c; 8 s of their grace period left."
    )
    assert sentence(without_names(found, "ml")).endswith(
        f"{said} These are ml/a, ml/b and 1 more; 8 s of their grace period left."
    )


def test_a_member_without_gpu_memory_says_the_same():
    facts = PreemptionFacts(TWO)
    gang = gang_view(Phase.WAITING_FOR_ROOM, facts)
    server = annotated(pod("server", None), {}, namespace="ml")
    assert sentence(why(facts, server, gang)) == (
        "it is a member of gang train. About to evict 2 pods of lower priority for it. These are "
        "ml/a, ml/b."
    )


def test_among_many_pods_alike_only_the_one_that_gets_the_room_says_so():
    one, other = (annotated(pod(name, 32), {}, namespace="ml") for name in ("one", "other"))
    cluster = cluster_with(PreemptionFacts(TWO), one)
    sentences = Sentences(cluster)
    assert run_all(sentences.of(other)).startswith("requests 32 MiB on one GPU")
    assert run_all(sentences.of(one)).startswith("about to evict 2 pods")


def test_what_is_written_for_many_readers_changes_only_with_the_evictions():
    wanted = asks(32)
    cluster = cluster_with(PreemptionFacts(TWO, 0, 22.0, begun=True), wanted)
    sentences = Sentences(cluster)
    said = run_all(sentences.of(wanted))
    assert said == "evicting 2 pods of lower priority for it (ml/a, ml/b)."
    cluster.preemptions = Evictions(PreemptionFacts(TWO, 0, 3.0, begun=True), wanted.uid)
    assert sentences.has(wanted)
    cluster.preemptions = Evictions(PreemptionFacts(TWO, 1, 3.0, begun=True), wanted.uid)
    assert not sentences.has(wanted)
