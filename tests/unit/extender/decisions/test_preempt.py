"""preempt: a proposal stays only if its victims make room on the cards that the pod needs."""

import asyncio

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.cards.model import ContainerRequest, Request, Share
from gpushare.contract import (
    ANNOTATION_INVENTORY,
    ANNOTATION_NODE_POLICY,
    LABEL_CARD_COUNT,
)
from gpushare.ledger.accounts import Reserve
from gpushare.ledger.holds import Claim, Hold, Slot
from gpushare.ledger.ledger import Ledger
from gpushare.placement import card_choice as placement
from gpushare.placement import reasons
from gpushare.placement.proposed_victims import why_not_without
from tests.builders import node, pod, stock
from tests.unit.extender.scripted import PREFIX, Bench, bound, changed, wire_pod


@pytest.fixture
async def bench():
    """Node n: two cards of 16, each with 8 + 8. Node m: one card of 16 with 16."""
    made = Bench(16, 16)
    made.cluster.node_changed(node("m", 16))
    for name, card in (("a1", 0), ("a2", 0), ("b1", 1), ("b2", 1)):
        made.add(bound(name, 8, f"GPU-{card}"))
    made.add(bound("whole", 16, node="m"))
    return made


def high(units="16", **meta):
    return wire_pod(units, "high", spec={"priority": 100}, **meta)


def meta(*names, pdb=0):
    return {"Pods": [{"UID": f"uid-{name}"} for name in names], "NumPDBViolations": pdb}


async def ask(client, proposed, **pod_fields):
    body = {
        "Pod": high(**pod_fields),
        "NodeNameToVictims": None,
        "NodeNameToMetaVictims": proposed,
    }
    response = await client.post(f"{PREFIX}/preempt", json=body)
    assert response.status == 200
    return await response.json()


async def test_victims_on_different_cards_die_for_nothing_and_are_spared(client, bench):
    """The case of the issue: a node of two cards with 8 + 8 each, and a pod that requests 16."""
    before = bench.held
    assert await ask(client, {"n": meta("a2", "b2")}) == {"NodeNameToMetaVictims": {}}
    assert bench.held == before


async def test_a_proposal_that_frees_one_card_stays_as_it_was_proposed(client):
    answer = await ask(client, {"n": meta("b2", "b1", pdb=1)})
    assert answer == {"NodeNameToMetaVictims": {"n": meta("b2", "b1", pdb=1)}}


async def test_each_node_is_judged_by_itself(client):
    proposed = {"n": meta("a1", "b1"), "m": meta("whole", pdb=2), "gone": meta("x"), "e": meta()}
    answer = await ask(client, proposed)
    assert answer == {"NodeNameToMetaVictims": {"m": meta("whole", pdb=2)}}


async def test_full_pods_are_answered_with_their_uids(client):
    """The form of a scheduler whose extender is not nodeCacheCapable."""
    victims = [wire_pod(name=name) for name in ("a1", "a2")]
    body = {
        "Pod": high(),
        "NodeNameToVictims": {
            "n": {"Pods": victims, "NumPDBViolations": 3},
            "m": {"Pods": None, "NumPDBViolations": 0},
        },
        "NodeNameToMetaVictims": None,
    }
    response = await client.post(f"{PREFIX}/preempt", json=body)
    assert await response.json() == {"NodeNameToMetaVictims": {"n": meta("a1", "a2", pdb=3)}}


async def test_a_victim_that_is_not_known_makes_no_room(client):
    assert await ask(client, {"n": meta("stranger", "a1")}) == {"NodeNameToMetaVictims": {}}
    # One that holds no GPU memory may die for the CPU that it has, beside those that make room.
    answer = await ask(client, {"n": meta("stranger", "a1", "a2")})
    assert answer == {"NodeNameToMetaVictims": {"n": meta("stranger", "a1", "a2")}}


async def test_a_victim_of_another_node_makes_no_room_here(client):
    assert await ask(client, {"n": meta("whole")}) == {"NodeNameToMetaVictims": {}}


async def test_what_the_watch_brings_with_the_call_is_heard_before_a_veto(client, bench):
    loop = asyncio.get_running_loop()
    loop.call_later(0.005, bench.cluster.pod_deleted, bench.cluster.pods.pod("uid-a1"))
    answer = await ask(client, {"n": meta("a2")})
    assert answer == {"NodeNameToMetaVictims": {"n": meta("a2")}}


async def test_nodes_without_victims_are_left_out(client, bench):
    """kube-scheduler takes an empty list for an error of the whole attempt."""
    bench.cluster.pod_deleted(bench.cluster.pods.pod("uid-whole"))
    for nothing in ({"Pods": [], "NumPDBViolations": 0}, {"Pods": None}, {}):
        assert await ask(client, {"m": nothing}) == {"NodeNameToMetaVictims": {}}


async def test_no_proposals_are_no_candidates(client):
    assert await ask(client, {}) == {"NodeNameToMetaVictims": {}}


@pytest.mark.parametrize("units", ["0", "8Gi", "-1", "x"])
async def test_nobody_dies_for_an_amount_that_cannot_be_read(client, units):
    answer = await ask(client, {"n": meta("a1", "a2")}, units=units)
    assert answer == {"NodeNameToMetaVictims": {}}


async def test_nobody_dies_for_a_policy_that_the_configuration_lacks(client):
    shape = {"annotations": {ANNOTATION_NODE_POLICY: "shape"}}
    answer = await ask(client, {"n": meta("a1", "a2")}, **shape)
    assert answer == {"NodeNameToMetaVictims": {}}


async def test_nobody_dies_on_a_node_whose_cards_cannot_be_had(client, bench):
    for broken in (
        node("n", 16, 16, unhealthy=[0, 1]),
        node("n", 16, 16, unit_mib=1024),
        node("n", 8, 8),
        changed(node("n", 16, 16), {"annotations": {ANNOTATION_INVENTORY: "{"}}),
    ):
        bench.cluster.node_changed(broken)
        assert await ask(client, {"n": meta("a1", "a2")}) == {"NodeNameToMetaVictims": {}}
    bench.cluster.node_deleted(node("n", 1))
    assert await ask(client, {"n": meta("a1", "a2")}) == {"NodeNameToMetaVictims": {}}


async def test_a_node_that_takes_no_pods_for_a_while_is_no_obstacle(client, bench):
    for number in range(2):
        rejected = {"phase": "Failed", "reason": "UnexpectedAdmissionError"}
        failed = changed(pod(f"f{number}"), status=rejected)
        bench.cluster.state.failing_nodes.bound(failed.uid, "n", bench.time.now)
        bench.cluster.pod_failed(failed)
    assert bench.cluster.figures()["gpushare_extender_cooling_nodes"] == 1
    answer = await ask(client, {"n": meta("a1", "a2")})
    assert answer == {"NodeNameToMetaVictims": {"n": meta("a1", "a2")}}


async def test_a_pod_over_two_cards_needs_room_on_both(client):
    labels = {LABEL_CARD_COUNT: "2"}
    kept = await ask(client, {"n": meta("a1", "b1")}, labels=labels)
    assert kept == {"NodeNameToMetaVictims": {"n": meta("a1", "b1")}}
    vetoed = await ask(client, {"n": meta("a1", "a2")}, labels=labels)
    assert vetoed == {"NodeNameToMetaVictims": {}}


async def test_outcomes_are_counted(client):
    await ask(client, {"n": meta("a1", "b1")})
    await ask(client, {"n": meta("a1", "a2")})
    text = await (await client.get("/metrics")).text()
    for outcome in ("some", "none"):
        assert f'gpushare_extender_requests_total{{outcome="{outcome}",verb="preempt"}}' in text


BAD_BODIES = [
    b'{"NodeNameToMetaVictims":{}}',
    b'{"Pod":{"metadata":{}},"NodeNameToMetaVictims":null,"NodeNameToVictims":null}',
    b'{"Pod":{"metadata":{}},"NodeNameToMetaVictims":[]}',
    b'{"Pod":{"metadata":{}},"NodeNameToMetaVictims":{"n":null}}',
    b'{"Pod":{"metadata":{}},"NodeNameToMetaVictims":{"n":{"Pods":[{}]}}}',
    b'{"Pod":{"metadata":{}},"NodeNameToMetaVictims":{"n":{"Pods":[{"UID":1}]}}}',
    b'{"Pod":{"metadata":{}},"NodeNameToMetaVictims":{"n":{"Pods":[],"NumPDBViolations":"x"}}}',
    b'{"Pod":{"metadata":{}},"NodeNameToVictims":{"n":{"Pods":[{}]}}}',
    b'{"Pod":{"metadata":{}},"NodeNameToVictims":' + b'{"n":' * 20000,
]


@pytest.mark.parametrize("body", BAD_BODIES, ids=range(len(BAD_BODIES)))
async def test_a_body_that_cannot_be_read_is_a_clear_error(client, body):
    response = await client.post(f"{PREFIX}/preempt", data=body)
    text = await response.text()
    assert response.status == 400
    assert "Error" in msgspec.json.decode(text)
    assert "Traceback" not in text


def ledger_of(*sizes):
    made = Ledger()
    made.set_inventory("n", stock(*sizes))
    return made


def put(ledger, uid, units, *cards):
    ledger.put_share(Share(uid, "default", uid, "n", units, tuple(f"GPU-{c}" for c in cards)))


def why(ledger, units, *victims, priority=100, count=1):
    request = Request((ContainerRequest("main", units * count),), count)
    return why_not_without(
        ledger, "n", request, victims, unit_mib=1, pod_uid="high", priority=priority
    )


def test_who_is_about_to_end_and_is_no_victim_still_holds_its_card():
    """P21: until it is gone its units are its own; the pod is looked at again then."""
    ledger = ledger_of(16)
    put(ledger, "ending", 8, 0)
    put(ledger, "low", 8, 0)
    assert why(ledger, 16, "low") is reasons.NO_ROOM
    assert why(ledger, 16, "low", "ending") is None


def test_a_victim_whose_binding_is_under_way_makes_room_too():
    """kube-scheduler deletes it all the same; its reserve ends when it is seen to be gone."""
    ledger = ledger_of(16)
    ledger.reserve(Reserve("low", "default", "low", "n", ("GPU-0",), 16, 1))
    assert why(ledger, 16) is reasons.NO_ROOM
    assert why(ledger, 16, "low") is None


def test_whose_card_cannot_be_told_makes_room_on_every_card():
    ledger = ledger_of(16, 16)
    ledger.put_share(Share("odd", "default", "odd", "n", 4, (), "no decision"))
    assert why(ledger, 16) is reasons.NO_ROOM
    assert why(ledger, 16, "odd") is None


def test_plans_of_others_stay_whoever_dies():
    ledger = ledger_of(16)
    put(ledger, "low", 8, 0)
    ledger.keep(Hold("gang", (Slot("n", ("GPU-0",), 8),), 10.0))
    assert why(ledger, 16, "low") is reasons.NO_ROOM
    ledger.drop(Hold, "gang")
    ledger.keep(Claim("other", (Slot("n", ("GPU-0",), 8),), 10.0, 100))
    assert why(ledger, 16, "low") is reasons.NO_ROOM
    assert why(ledger, 16, "low", priority=101) is None


@given(data=st.data())
def test_what_stays_would_have_fitted_and_what_is_vetoed_would_not(data):
    """Against a ledger in which the victims never were."""
    sizes = data.draw(st.lists(st.integers(4, 16), min_size=1, max_size=3))
    holders = data.draw(
        st.lists(st.tuples(st.integers(0, len(sizes) - 1), st.integers(1, 8)), max_size=8)
    )
    units, count = data.draw(st.integers(1, 16)), data.draw(st.integers(1, 2))
    victims = data.draw(st.sets(st.integers(0, 7)))
    whole, rest = ledger_of(*sizes), ledger_of(*sizes)
    for number, (card, amount) in enumerate(holders):
        put(whole, f"u{number}", amount, card)
        if number not in victims:
            put(rest, f"u{number}", amount, card)
    request = Request((ContainerRequest("main", units * count),), count)
    wanted = placement.why_not(rest.account("n"), request, 1)
    assert why(whole, units, *(f"u{number}" for number in victims), count=count) is wanted
    shares = {share.pod_uid for share in whole.shares()}
    assert shares == {f"u{number}" for number in range(len(holders))}
    made = Bench(*sizes)
    for number, (card, amount) in enumerate(holders):
        made.cluster.pod_changed(bound(f"u{number}", amount, f"GPU-{card}", uid=f"u{number}"))
    names = {f"u{number}" for number in victims}
    found = made.cluster.scheduling.proposals.judge(
        pod("high", units * count, labels={LABEL_CARD_COUNT: str(count)}), {"n": sorted(names)}
    )
    assert found.kept.keys() | found.vetoed.keys() == {"n"}
    # kube-scheduler may want to evict for the sum, or pods that are not known.
    free = sum(sizes) - sum(amount for _, amount in holders)
    is_known = all(number < len(holders) for number in victims)
    fits = placement.why_not(whole.account("n"), request, 1) is None and free >= units * count
    assert bool(found.kept) == (wanted is None and bool(victims) and not (fits and is_known))
    for uid in found.kept.get("n", ()):
        assert uid in names
