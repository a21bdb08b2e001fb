"""A card given away twice: never one that runs goes, and nobody where a card only shrank."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.eviction.overbooked_cards import SURE_SECONDS, OverbookedEvictor
from extender.eviction.rules import BoundPod, to_evict
from gpushare.contract import (
    ANNOTATION_ASSUME_TIME,
    ANNOTATION_CARD_UNITS,
    ANNOTATION_CARDS,
    ANNOTATION_INDEX,
)
from gpushare.errors import Conflict
from gpushare.objects.model import ContainerStatus, OwnerReference
from tests.builders import node, pod
from tests.unit.extender.scripted import DELETED, Bench, changed

CARD = "GPU-0"


def bound(name, units, at, *, size=16, started=False, owned=True, leaving=False, cards=CARD):
    sizes = ",".join([str(size)] * len(cards.split(",")))
    decision = {
        ANNOTATION_CARDS: cards,
        ANNOTATION_CARD_UNITS: sizes,
        ANNOTATION_ASSUME_TIME: str(at),
    }
    meta = {"owner_references": (OwnerReference(controller=True),) if owned else None}
    running = {"phase": "Running", "container_statuses": (ContainerStatus("main", "x://1"),)}
    return changed(
        pod(name, units, node="n", annotations=decision),
        meta | (DELETED if leaving else {}),
        status=running if started else {},
    )


def choose(*pods, units=16, each=16):
    found = to_evict(CARD, units, [BoundPod(p, each) for p in pods])
    return found.metadata.name if found else None


def test_the_newest_of_two_that_were_given_the_same_card_goes():
    assert choose(bound("a", 16, 1), bound("b", 16, 2)) == "b"
    assert choose(bound("b", 16, 2), bound("a", 16, 1)) == "b"


def test_of_the_same_moment_the_uid_decides():
    assert choose(bound("b", 16, 1), bound("a", 16, 1)) == "b"


def test_one_that_has_run_never_goes_though_it_is_the_newest():
    assert choose(bound("a", 16, 1), bound("b", 16, 2, started=True)) == "a"
    assert choose(bound("a", 16, 1, started=True), bound("b", 16, 2, started=True)) is None


def test_a_card_that_shrank_under_its_pods_evicts_nobody():
    assert choose(bound("a", 8, 1), bound("b", 8, 2), units=8, each=8) is None
    assert choose(bound("a", 8, 1), units=0, each=8) is None


def test_a_card_that_shrank_and_was_then_given_away_twice_is_mended():
    pods = bound("a", 8, 1, size=16), bound("b", 8, 2, size=8)
    assert choose(*pods, units=8, each=8) == "b"


def test_a_decision_that_claims_a_huge_card_keeps_nobody_on_it():
    assert choose(bound("a", 16, 1), bound("forged", 16, 2, size=10**18)) == "forged"


def test_one_that_something_makes_anew_goes_before_one_that_nothing_does():
    assert choose(bound("a", 16, 1), bound("bare", 16, 2, owned=False)) == "a"


def test_where_there_is_no_other_a_bare_one_goes():
    assert choose(bound("a", 16, 1, started=True), bound("bare", 16, 2, owned=False)) == "bare"


def test_one_that_leaves_already_is_enough():
    assert choose(bound("a", 16, 1), bound("b", 16, 2, leaving=True)) is None


def test_a_pod_whose_decision_cannot_be_read_is_not_chosen_and_nobody_goes_for_it():
    odd = bound("b", 16, 2)
    for key, text in ((ANNOTATION_ASSUME_TIME, "x"), (ANNOTATION_CARD_UNITS, "1,2")):
        odd.metadata.annotations[key] = text
        assert choose(odd, bound("a", 16, 1)) is None
        assert choose(odd, bound("a", 16, 1), bound("c", 16, 2)) == "c"
    assert choose(odd, odd) is None


pods = st.lists(
    st.tuples(st.integers(1, 16), st.integers(1, 9), st.booleans(), st.booleans(), st.booleans()),
    max_size=8,
)


@given(pods, st.integers(0, 16))
def test_evicting_until_nobody_is_due_mends_the_card_and_spares_whoever_ran(found, units):
    holders = {
        f"p{n}": BoundPod(bound(f"p{n}", u, at, started=s, owned=o, leaving=g), u)
        for n, (u, at, s, o, g) in enumerate(found)
    }
    while (gone := to_evict(CARD, units, holders.values())) is not None:
        assert not gone.has_started
        assert gone.metadata.deletion_timestamp is None
        staying = [h for h in holders.values() if not h.pod.metadata.deletion_timestamp]
        started = [h for h in holders.values() if h.pod.has_started]
        held = {h.pod.uid: h.units for h in [*staying, *started]}
        assert sum(held.values()) > 16  # more than every decision saw
        del holders[gone.metadata.name]
    kept = holders.values()
    left = [h for h in kept if h.pod.has_started or not h.pod.metadata.deletion_timestamp]
    assert sum(h.units for h in left) <= 16 or all(h.pod.has_started for h in left)


class Overbooked(Bench):
    def __init__(self) -> None:
        super().__init__(16, 16)
        self.evictor = OverbookedEvictor(self.cluster.state, self.kube, self.notice, self.time)

    async def rounds(self, count: int) -> None:
        for _ in range(count):
            self.time.now += 1
            await self.evictor.check()


@pytest.fixture
def bench():
    """Two pods that were given one GPU."""
    made = Overbooked()
    made.add(bound("a", 16, 1), bound("b", 16, 2))
    return made


async def test_a_card_given_away_twice_loses_its_newest_pod_and_it_is_told(bench):
    await bench.rounds(int(SURE_SECONDS) + 2)
    assert bench.kube.evicted == [("b", "uid-b")]
    [(name, reason, text)] = bench.told
    assert (name, reason) == ("b", "GpushareEvicted")
    assert "given away twice" in text


async def test_a_pod_that_names_a_card_without_a_decision_of_ours_evicts_nobody():
    bench = Overbooked()
    forged = pod("forged", 16, node="n", annotations={ANNOTATION_INDEX: "0"})
    bench.add(bound("good", 16, 1), forged)
    assert bench.held[0][0] == 32
    await bench.rounds(int(SURE_SECONDS) + 4)
    assert not bench.kube.evicted


async def test_it_is_asked_once_while_the_pod_leaves(bench):
    await bench.rounds(int(SURE_SECONDS) + 1)
    bench.add(bound("b", 16, 2, leaving=True))
    await bench.rounds(200)
    assert len(bench.kube.evicted) == 1


async def test_what_another_pods_end_mends_in_a_moment_is_left_alone(bench):
    await bench.rounds(1)
    bench.cluster.pod_deleted(bench.kube.pods["a"])
    await bench.rounds(10)
    assert not bench.kube.evicted


async def test_a_pod_that_has_begun_to_run_meanwhile_stays(bench):
    bench.kube.outcomes = [Conflict("it has changed", code=409)]
    await bench.rounds(int(SURE_SECONDS) + 1)
    bench.add(bound("b", 16, 2, started=True), bound("a", 16, 1, started=True))
    await bench.rounds(200)
    assert not bench.kube.evicted


async def test_a_card_is_mended_too_whose_node_was_away_for_a_while(bench):
    bench.cluster.node_deleted(node("n", 16, 16))
    await bench.rounds(10)
    assert not bench.kube.evicted
    bench.cluster.node_changed(node("n", 16, 16))
    await bench.rounds(int(SURE_SECONDS) + 2)
    assert bench.kube.evicted == [("b", "uid-b")]
